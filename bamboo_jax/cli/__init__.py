"""What all commands share.

command       one line for what the user got wrong, and for signals; read first
config_check  config files: keys and types, and what is wrong with their code
listing       the commands, as `bamboo --help` lists them
"""
