"""The parts of a job that need no device, made once for many workers.

A process that is forked into workers (`cluster.copies`) imports all modules,
reads the data and traces the programs beforehand. A worker takes the results
when it makes its job.
"""

import dataclasses
import gc
import threading
from typing import Any

import ml_collections

from bamboo_jax.runtime import compat
from bamboo_jax.runtime import program_cache
from bamboo_jax.runtime.profile import estimates
from bamboo_jax.train.setup import build
from bamboo_jax.train.setup import executors


@dataclasses.dataclass(frozen=True)
class Prepared:
  """The task of a config, and its traced programs."""

  task: build.Task
  programs: program_cache.ProgramCache


_prepared: list[tuple[dict[str, Any], Prepared]] = []  # One at most.


def prepare(config: ml_collections.ConfigDict) -> bool:
  """Prepares a job; returns whether this process may be forked afterwards.

  It may not once it has threads or devices, for example because the model's
  code uses them. Raises as `build.make_task` and `executors.find_cuts`.
  """
  task, programs = build.make_task(config), program_cache.ProgramCache()
  executors.find_cuts(config, task)  # Checks it before nodes start.
  if not (executors.is_program(config) or config.pipeline.unit == "stage"):
    programs.trace(task.whole)
  estimates.digest_package()
  _prepared[:] = [(config.to_dict(), Prepared(task, programs))]
  gc.collect()
  gc.freeze()  # Copies share its memory, until one writes to it.
  return threading.active_count() == 1 and not compat.has_devices()


def take(config: ml_collections.ConfigDict) -> Prepared:
  """Returns and removes the prepared parts of a config; else makes its task."""
  if _prepared and _prepared[0][0] == config.to_dict():
    return _prepared.pop()[1]
  return Prepared(build.make_task(config), program_cache.ProgramCache())
