"""Commands; each module is one, to be run with `python -m`."""
