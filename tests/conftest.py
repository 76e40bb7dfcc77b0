"""Gives the tests virtual devices, before anything starts JAX.

Compiled programs are kept in build/, by tests and the processes they start, so
that what one has compiled the others load, and so does the next `launch/test`.
"""

import gc
import os
import pathlib
import sys

import hypothesis
import jax
import pytest

from bamboo_jax.runtime import devices as devices_lib
from bamboo_jax.runtime import program_cache
from bamboo_jax.runtime.executables import program_folder
from bamboo_jax.runtime.executables import program_store
from bamboo_jax.runtime.phases import fingerprint

_CACHE = pathlib.Path(__file__).resolve().parents[1] / "build" / "cache"
# Each program takes three mappings; Linux kills whoever exceeds 65,530.
_MAX_MAPPINGS = 20_000

os.environ["XDG_CACHE_HOME"] = str(_CACHE)
program_store.use(program_folder.default_path())
devices_lib.use_virtual_devices(8, distinct=True)
# Correctness never depends on timing: cores may be busy.
hypothesis.settings.register_profile("busy", deadline=None)
hypothesis.settings.load_profile("busy")


@pytest.fixture(autouse=True, scope="module")
def _few_programs(request):
  """Drops all programs after a file of tests if there are too many."""
  yield
  mappings = pathlib.Path("/proc/self/maps").read_text().count("\n")
  if mappings > _MAX_MAPPINGS:
    for name, module in list(sys.modules.items()):
      if name.startswith("tests."):
        _drop_programs(module)
    _drop_programs(request.module)
    _drop_programs(fingerprint)
    jax.clear_caches()
    gc.collect()


def _drop_programs(module):
  for value in vars(module).values():
    if isinstance(value, program_cache.ProgramCache):
      value.clear()
    elif hasattr(value, "cache_clear"):
      value.cache_clear()
