"""Layouts as jobs of a sweep: each names what it needs to run anywhere."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from bamboo_jax import config as config_lib
from bamboo_jax.runtime import devices
from bamboo_jax.runtime.executables import program_store
from bamboo_jax.testing.fault_sweep import clusters, layouts

_made: dict[str, Any] = {}  # By what they are made of; they keep programs.


class SweepJob(NamedTuple):
  """A layout to run: in a process, or with `arguments` in a cluster."""

  layout: layouts.SweepLayout
  config: config_lib.Config
  arguments: Sequence[str] | None
  program_cache: str  # Folder; empty: none.
  num_events: int


class Ended(NamedTuple):
  """How a job ended: with a state, or with an error."""

  state: str | None
  outcome: str
  faults: str


def draw(
    config: config_lib.Config,
    arguments: Sequence[str] | None,
    *,
    program_cache: str,
    count: int,
    seed: int,
    num_events: int,
) -> list[SweepJob]:
  """Returns random layouts as jobs."""
  maker = _make(config, arguments, program_cache, num_events)
  return [
      SweepJob(layout, config, arguments, program_cache, num_events)
      for layout in maker.draw(count, seed=seed)
  ]


def run(job: SweepJob) -> Ended:
  """Returns how a layout ended; the others are run whatever one does."""
  maker = _make(*job[1:])
  try:
    state = maker.run(job.layout)
    outcome = state[:12]
  except Exception as error:
    state, outcome = None, f"FAILED {type(error).__name__}: {error}"
  return Ended(state, outcome, ";".join(map(str, maker.drawn)))


def _make(
    config: config_lib.Config, arguments: Sequence[str] | None, program_cache: str, num_events: int
) -> Any:
  """Returns the object of this process that draws layouts and runs them."""
  if arguments is not None:
    return clusters.Clusters(arguments, num_events=num_events)
  key = f"{config} {num_events}"
  if key not in _made:
    program_store.use(program_cache)
    devices.use_virtual_devices(layouts.MAX_DEVICES, distinct=True)
    _made[key] = layouts.Layouts(config, num_events=num_events)
  return _made[key]
