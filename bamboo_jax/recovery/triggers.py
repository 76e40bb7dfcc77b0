"""Bamboo's triggers (NSDI'23) for making new pipelines.

Bamboo keeps the number of stages, P, and makes floor(n / P) pipelines of n
nodes; the rest are spares. It reconfigures between two steps if spares can
relieve all nodes that have two stages, if so many have two that another loss
may well be fatal, or if there are nodes for one more pipeline. These are the
rules of its public simulator. Whether new pipelines pay is up to `decide`.
"""

from collections.abc import Sequence
import dataclasses

from bamboo_jax.plan import pipelines as pipelines_lib


@dataclasses.dataclass(frozen=True)
class Triggers:
  """What makes new pipelines desirable.

  Attributes:
    refill: There are as many spares as nodes with more than one stage.
    max_doubled: Twice the number of nodes with more than one stage, as a
      fraction of all nodes that train, is above this; None switches it off.
    grow: The nodes suffice for one more pipeline.
  """

  refill: bool = True
  max_doubled: float | None = 0.05
  grow: bool = True

  def __post_init__(self) -> None:
    if self.max_doubled is not None and not 0.0 <= self.max_doubled <= 2.0:
      raise ValueError(
          f"max_doubled must be from 0 to 2, got {self.max_doubled}."
      )


def target_pipelines(
    num_nodes: int, *, num_stages: int, max_pipelines: int | None = None
) -> int:
  """Returns how many pipelines of `num_stages` there should be."""
  wanted = num_nodes // num_stages
  return wanted if max_pipelines is None else min(wanted, max_pipelines)


def find_triggers(
    pipelines: Sequence[pipelines_lib.Pipeline],
    *,
    num_spares: int,
    num_stages: int,
    triggers: Triggers,
    max_pipelines: int | None = None,
) -> tuple[str, ...]:
  """Returns the reasons for new pipelines, in words; empty if there are none.

  Spares are live nodes that own nothing; each pipeline has `num_stages`.
  """
  num_training = sum(len(p.nodes) for p in pipelines)
  num_doubled = sum(p.partition.num_stages - len(p.nodes) for p in pipelines)
  wanted = target_pipelines(
      num_training + num_spares,
      num_stages=num_stages,
      max_pipelines=max_pipelines,
  )
  reasons = []
  if triggers.refill and 0 < num_doubled <= num_spares:
    reasons.append(
        f"{num_spares} spares can take the {num_doubled} stages without a node "
        "of their own"
    )
  limit = triggers.max_doubled
  if (
      limit is not None
      and num_doubled
      and 2 * num_doubled > limit * num_training
  ):
    reasons.append(
        f"{num_doubled} stages have no node of their own, with {num_training} "
        f"nodes that is close to a fatal loss (limit {limit:g})"
    )
  if triggers.grow and wanted > len(pipelines):
    reasons.append(
        f"{num_training + num_spares} nodes suffice for {wanted} pipelines of "
        f"{num_stages}, there are {len(pipelines)}"
    )
  return tuple(reasons)
