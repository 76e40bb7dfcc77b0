"""Gives the tests virtual devices, before anything starts JAX."""

from bamboo_jax.runtime import devices

devices.use_virtual_devices(8)
