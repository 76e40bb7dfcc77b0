"""What all commands share.

command       one-line errors for mistakes of the user and signals; read first
config_flag   `--config`: files, overrides, and errors in their code
flagset       flags as dataclasses: their help, their checks, and a child's arguments
"""
