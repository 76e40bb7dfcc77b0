"""Trains deep networks on machines that may vanish at any moment.

Each room says in its `__init__` what stands in it; none imports one above it.

  verify          looks for faults: real deaths in real steps, everywhere
  api             what `import bamboo_jax` offers: train, plan, cluster, ...
  local_cluster   a whole cluster on one machine: real processes, really killed
  gpu             compiles for GPUs on machines without one
  experiments     simulated experiments, against published figures
  training        the training loop of one member of a cohort
  report          runs as an HTML page
  exchange        weights from and for `transformers`
  checkpoint      checkpoints: parts of members, put together
  sim             plays traces of preemptions against policies
  runtime         runs schedules on devices: programs, links, sums, phases
  cluster         agents that agree on the members
  recovery        decides how training goes on after a loss
  accounting      where the nodes' time went, and dollars
  plan            partition, rows, memory and time of a step before it runs
  config          the options of a run: typed, checked, explained
  data            batches that depend on seed and step alone
  net             addresses of hosts, and identities of processes
  schedule        the instructions of a pipeline, as data
  models          models as lists of layers
  metrics         logs, summaries, traces and figures of a run
  faults, traces  what happens to nodes: by step, and by the clock
  cli, base       what commands share, and what every room may use

Commands (`launch`), configs (`configs`), benchmarks (`benchmarks`) and the
papers' own simulators (`reproductions`) are packages too. In the repository
they are folders beside this one; the wheel has them within it.
"""

import importlib
import os
from typing import Any, TYPE_CHECKING

__version__ = "0.1.0"

_LIBRARY = os.path.dirname(os.path.abspath(__file__))
if not os.path.isdir(os.path.join(_LIBRARY, "launch")):
  __path__.append(os.path.dirname(_LIBRARY))  # `bamboo_jax.launch` is there.

# What this module offers, imported on first use: by name, its module. Without a
# name of its own the module itself can be called.
_OFFERED = {
    "Result": "metrics.summary",
    "cluster": "",
    "from_arrays": "data.samples",
    "from_loss": "models.from_loss",
    "get_config": "api",
    "load": "api",
    "plan": "",
    "read_result": "metrics.summary",
    "simulate": "sim",
    "train": "api",
}
__all__ = ["__version__", *_OFFERED]

if TYPE_CHECKING:
  from bamboo_jax.api import (
      cluster as cluster,
      get_config as get_config,
      load as load,
      plan as plan,
      train as train,
  )
  from bamboo_jax.data.samples import from_arrays as from_arrays
  from bamboo_jax.metrics.summary import read_result as read_result, Result as Result
  from bamboo_jax.models.from_loss import from_loss as from_loss
  from bamboo_jax.sim import simulate as simulate
else:  # A misspelt name is an error of mypy.

  def __getattr__(name: str) -> Any:
    if name not in _OFFERED:
      raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if not _OFFERED[name]:
      return importlib.import_module(f"{__name__}.{name}")
    return getattr(importlib.import_module(f"{__name__}.{_OFFERED[name]}"), name)


def __dir__() -> list[str]:
  return sorted({*globals(), *_OFFERED})
