"""Bamboo's triggers (NSDI'23) for making new pipelines.

Bamboo keeps the number of stages, P, and makes floor(n / P) pipelines of n
nodes; the rest are spares. It reconfigures between two steps if spares can
relieve all nodes with two stages, if the number of such nodes makes another
loss likely to be fatal, or if there are nodes for one more pipeline. These are
the rules of its public simulator. `decide` checks whether new pipelines pay.
"""

from collections.abc import Sequence

from bamboo_jax import config
from bamboo_jax.plan import pipelines as pipelines_lib


def fire(
    options: config.RecoverySection,
    pipelines: Sequence[pipelines_lib.Pipeline],
    *,
    num_spares: int,
    most_pipelines: int,
) -> bool:
  """Returns whether new pipelines are desirable, by the triggers that are switched on.

  Args:
    options: `refill`, `max_doubled` and `grow` count.
    num_spares: Live nodes without a stage.
    most_pipelines: Number of pipelines that all live nodes suffice for.
  """
  num_training = sum(len(p.nodes) for p in pipelines)
  num_doubled = sum(p.partition.num_stages - len(p.nodes) for p in pipelines)
  return (
      (options.refill and 0 < num_doubled <= num_spares)
      or 2 * num_doubled > options.max_doubled * num_training
      or (options.grow and most_pipelines > len(pipelines))
  )
