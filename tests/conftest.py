"""Gives the tests virtual devices, before anything starts JAX.

Compiled programs are kept in build/, and loaded by other tests, processes and runs. See
`tests/file_secs.py` for the order of files, `tests/samples.py` and `tests/compilation.py`.
"""

import gc
import os
import pathlib
import sys
import time

import hypothesis
import jax
import pytest

from bamboo_jax import base
from bamboo_jax.runtime import devices as devices_lib, program_store
from bamboo_jax.runtime.phases import replicas
from bamboo_jax.runtime.stage import programs as programs_lib
from tests import compilation, file_secs, samples

_CACHE = pathlib.Path(__file__).resolve().parents[1] / "build" / "cache"
# Each program takes three mappings; Linux kills whoever exceeds 65,530.
_MAX_MAPPINGS = 20_000
_SECS = pytest.StashKey[dict[str, float]]()

os.environ["XDG_CACHE_HOME"] = str(_CACHE)
os.environ["BAMBOO_JAX_QUIET"] = "1"  # Tests compare the lines of standard error.
program_store.use(base.find_cache("programs"))
devices_lib.use_virtual_devices(8, distinct=True)
# Correctness never depends on timing: cores may be busy.
hypothesis.settings.register_profile("busy", deadline=None)
hypothesis.settings.load_profile("busy")


def pytest_addoption(parser):
  parser.addoption("--all", action="store_true", help="Run whole sweeps.")
  parser.addoption("--sample", help="Seed of the samples of sweeps.")


def pytest_configure(config):
  if hasattr(config, "workerinput"):
    config.stash[_SECS] = config.workerinput["file_secs"]
    return  # The environment has the seed.
  try:
    samples.choose(config.option.sample, is_all=config.option.all)
  except ValueError as error:
    raise pytest.UsageError(f"{error}") from None
  compilation.choose(is_quick=not config.option.all)
  config.stash[_SECS] = file_secs.read(file_secs.RECORD)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
  """Gives a worker the times: all workers must have the same order."""
  node.workerinput["file_secs"] = node.config.stash[_SECS]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
  found = getattr(node, "workeroutput", {}).get("file_secs", {})
  file_secs.add(file_secs.RECORD, found)


def pytest_report_header():
  return samples.describe()


def pytest_terminal_summary(terminalreporter):
  terminalreporter.line(samples.describe())  # With -q there is no header.
  reports = [r for kind in ("failed", "error") for r in terminalreporter.stats.get(kind, ())]
  names = dict.fromkeys(f"'{report.nodeid}'" for report in reports)
  if names:
    option = samples.describe().removeprefix("sweeps: ")
    terminalreporter.line(f"again: launch/test {option} {' '.join([*names][:3])}")


def pytest_collection_modifyitems(config, items):
  names = {item.nodeid.split("::")[0] for item in items}
  secs = {name: file_secs.guess(name) for name in names} | config.stash[_SECS]
  items.sort(key=lambda item: -secs[item.nodeid.split("::")[0]])


@pytest.fixture(autouse=True, scope="module")
def _records_secs(request):
  """Records the times of the files of which all tests run."""
  start_secs = time.monotonic()
  yield
  config = request.config
  is_part = config.option.keyword or any("::" in arg for arg in config.args)
  if not is_part:
    secs = {request.node.nodeid: time.monotonic() - start_secs}
    if hasattr(config, "workeroutput"):
      config.workeroutput.setdefault("file_secs", {}).update(secs)
    else:
      file_secs.add(file_secs.RECORD, secs)


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
    _drop_programs(replicas)
    jax.clear_caches()
    gc.collect()


def _drop_programs(module):
  for value in vars(module).values():
    if isinstance(value, programs_lib.ProgramCache):
      value.clear()
    elif hasattr(value, "cache_clear"):
      value.cache_clear()
