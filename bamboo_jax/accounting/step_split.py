"""Splits the nodes' time in one measured step."""

from bamboo_jax.accounting import account as account_lib

NodeTime = account_lib.NodeTime


def split_step(
    secs: float,
    *,
    num_nodes: int,
    passes: NodeTime,
    joint: NodeTime,
    num_idle: int = 0,
    lost_secs: float = 0.0,
) -> NodeTime:
  """Returns the time of all nodes in a step, those that died in it included.

  Unaccounted time is the bubble. Threads measure the parts, which may overlap a
  little; any excess over the available time is left out, in the code's order.

  Args:
    num_nodes: Number of nodes that train, when it ended.
    passes: Time of passes, summed over nodes; passes in the place of lost nodes
      are recovery.
    joint: What all nodes did at once, in seconds of wall time: updating,
      summing gradients, refreshing replicas, recovering.
    num_idle: Number of live nodes without a part in it, such as spares.
    lost_secs: Time until they died, summed over the nodes that did.
  """
  left = num_nodes * secs
  worked = passes + joint * num_nodes
  parts = {}
  for kind in ("useful", "communication", "redundant", "recovery"):
    parts[kind] = min(getattr(worked, kind), left)
    left -= parts[kind]
  return NodeTime(**parts, bubble=left, lost=lost_secs, idle=num_idle * secs)
