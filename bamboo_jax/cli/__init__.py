"""What all commands share; `launch/cli.py` has their start and end.

config_flag   `--config`: files, overrides, and errors in their code
flagset       flags as dataclasses: their help, their checks, and a child's arguments
"""
