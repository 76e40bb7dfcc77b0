"""Bamboo's triggers (NSDI'23) for making new pipelines.

Bamboo keeps the number of stages, P, and makes floor(n / P) pipelines of n
nodes; the rest are spares. It reconfigures between two steps if spares can
relieve all nodes with two stages, if the number of such nodes makes another
loss likely to be fatal, or if there are nodes for one more pipeline. These are
the rules of its public simulator. `decide` checks whether new pipelines pay.
"""

from collections.abc import Sequence
import dataclasses

from bamboo_jax.plan import pipelines as pipelines_lib


@dataclasses.dataclass(frozen=True)
class Triggers:
  """Conditions under which new pipelines are desirable.

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
      raise ValueError(f"max_doubled must be from 0 to 2, got {self.max_doubled}.")

  def fire(
      self, pipelines: Sequence[pipelines_lib.Pipeline], *, num_spares: int, most_pipelines: int
  ) -> bool:
    """Returns whether new pipelines are desirable.

    Args:
      num_spares: Live nodes without a stage.
      most_pipelines: Number of pipelines that all live nodes suffice for.
    """
    num_training = sum(len(p.nodes) for p in pipelines)
    num_doubled = sum(p.partition.num_stages - len(p.nodes) for p in pipelines)
    limit = self.max_doubled
    return (
        (self.refill and 0 < num_doubled <= num_spares)
        or (limit is not None and 2 * num_doubled > limit * num_training)
        or (self.grow and most_pipelines > len(pipelines))
    )
