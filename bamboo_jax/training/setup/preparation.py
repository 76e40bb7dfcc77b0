"""The parts of a job that need no device, made once for many workers.

A process that is forked into workers (`cluster.copies`) imports all modules,
reads the data and traces the programs beforehand. A worker takes the results
when it makes its job.
"""

import dataclasses
import gc
import threading

from bamboo_jax import config as config_lib
from bamboo_jax.runtime import compat
from bamboo_jax.runtime.stage import programs as programs_lib
from bamboo_jax.training.setup import build, executors

_TRACED = ("forward", "redundant", "backward", "evaluate", "update", "norms", "zeros", "cast")


@dataclasses.dataclass(frozen=True)
class Prepared:
  """The task of a config, and its traced programs."""

  task: build.Task
  programs: programs_lib.ProgramCache


_prepared: list[tuple[config_lib.Config, Prepared]] = []  # One at most.


def prepare(config: config_lib.Config) -> bool:
  """Prepares a job; returns whether this process may be forked afterwards.

  It may not once it has threads or devices, for example because the model's
  code uses them. Raises as `build.make_task` and `executors.find_cuts`.
  """
  task, programs = build.make_task(config), programs_lib.ProgramCache()
  executors.find_cuts(config, task)  # Checks it before nodes start.
  if not executors.is_program(config):
    for unit in programs_lib.find_kinds([task.whole]):
      for name in _TRACED:
        programs.get(unit).trace(name)
  _prepared[:] = [(config, Prepared(task, programs))]
  gc.collect()
  gc.freeze()  # Copies share its memory, until one writes to it.
  return threading.active_count() == 1 and not compat.has_devices()


def peek() -> build.Task:
  """Returns the task of the prepared job."""
  ((_, prepared),) = _prepared
  return prepared.task


def take(config: config_lib.Config) -> Prepared:
  """Returns and removes the prepared parts of a config; else makes its task."""
  if _prepared and _prepared[0][0] == config:
    return _prepared.pop()[1]
  return Prepared(build.make_task(config), programs_lib.ProgramCache())
