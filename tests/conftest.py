"""Gives the tests virtual devices, before anything starts JAX.

Compiled programs are kept in build/, by tests and the processes they start, so
that what one has compiled the others load, and so does the next `launch/test`.
"""

import os
import pathlib

import hypothesis

from bamboo_jax.runtime import devices as devices_lib
from bamboo_jax.runtime.executables import store

_CACHE = pathlib.Path(__file__).resolve().parents[1] / "build" / "cache"
os.environ["XDG_CACHE_HOME"] = str(_CACHE)
store.use(store.default_folder())
devices_lib.use_virtual_devices(8, distinct=True)
# Correctness never depends on timing: cores may be busy.
hypothesis.settings.register_profile("busy", deadline=None)
hypothesis.settings.load_profile("busy")
