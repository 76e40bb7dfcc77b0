"""What all commands share.

command       one line for what the user got wrong, and for signals; read first
config_check  whether a config has the keys and the types of another one
"""
