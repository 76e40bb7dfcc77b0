"""Configurations of `bamboo simulate`; each module has a `get_config`."""
