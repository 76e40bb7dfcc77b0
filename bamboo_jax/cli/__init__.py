"""What all commands share.

command       one-line errors for mistakes of the user and signals; read first
config_check  config files: keys, types, and errors in their code
listing       the commands, as `bamboo --help` lists them
"""
