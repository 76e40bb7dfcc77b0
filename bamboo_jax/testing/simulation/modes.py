"""Explorations by mode: of a cluster, see `plans`, or of its transport."""

import dataclasses
import json
from typing import NamedTuple

from bamboo_jax.testing.simulation import history, plans
from bamboo_jax.testing.simulation.wire import history as wire_history

_WIRE = "wire"
MODES = sorted([*plans.MODES, _WIRE])


class Histories(NamedTuple):
  """Histories of a mode, from the seed `first` up to `end`."""

  mode: str
  first: int
  end: int
  shrinks: bool


def explore_all(job: Histories) -> list[list[str]]:
  """Returns the lines of each history of a job."""
  return [explore(job.mode, seed, shrinks=job.shrinks) for seed in range(job.first, job.end)]


def explore(mode: str, seed: int, *, shrinks: bool) -> list[str]:
  """Returns what a history violates, as lines; none if it violates nothing.

  The second line is the smallest plan of faults found, if there are plans.
  """
  if mode == _WIRE:
    try:
      wire_history.explore(seed)
    except wire_history.ViolationError as error:
      return [f"seed={seed} {error}"]
    return []
  plan = plans.draw(mode, seed)
  if not (found := history.explore(plan)):
    return []
  plan = history.shrink(plan) if shrinks else plan
  return [f"seed={seed} {found[0]}", f"  {json.dumps(dataclasses.asdict(plan))}"]
