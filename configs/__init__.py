"""Configurations; each module has a `get_config`."""
