"""Configurations of `launch.simulate`; each module has a `get_config`."""
