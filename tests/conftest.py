"""Gives the tests virtual devices, before anything starts JAX."""

import hypothesis

from bamboo_jax.runtime import devices

devices.use_virtual_devices(8)
# Correctness never depends on timing: cores may be busy.
hypothesis.settings.register_profile("busy", deadline=None)
hypothesis.settings.load_profile("busy")
