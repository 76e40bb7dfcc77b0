"""The subject of a case."""

import dataclasses
import pathlib

import ml_collections

from bamboo_jax.plan import planner


@dataclasses.dataclass(frozen=True)
class Subject:
  """A pipeline, and how much of it is measured.

  Attributes:
    num_rounds: Steps of each variant.
    num_deaths: Times of death in a step, of each node.
    num_repeats: How often each death is repeated.
  """

  config: ml_collections.ConfigDict
  plan: planner.Plan
  profile_path: pathlib.Path
  out: pathlib.Path
  num_rounds: int
  num_deaths: int
  num_repeats: int

  @property
  def bounds(self) -> str:
    """The partition, as commands have it: 0,10,18."""
    return ",".join(map(str, self.plan.partition.bounds))
