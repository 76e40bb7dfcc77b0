"""Where the nodes' time went in one measured step."""

import dataclasses

from bamboo_jax.accounting import account

NodeTime = account.NodeTime


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepTimes:
  """How long a step took, and what its nodes did; all times in seconds.

  Attributes:
    secs: The step.
    num_nodes: Number of nodes that train, when it ended.
    num_idle: Number of live nodes that have no part in it, such as spares.
    useful_secs: Forward and backward passes, summed over nodes.
    redundant_secs: Redundant forward passes, summed over nodes.
    owed_secs: Passes in the place of lost nodes, summed over nodes.
    joint_secs: Time in which all nodes reduced or updated.
    refresh_secs: Time in which all nodes refreshed replicas.
    pause_secs: Time that it took to detect losses and to plan what to do.
    lost_secs: Time until they died, summed over the nodes that did.
  """

  secs: float
  num_nodes: int
  num_idle: int = 0
  useful_secs: float = 0.0
  redundant_secs: float = 0.0
  owed_secs: float = 0.0
  joint_secs: float = 0.0
  refresh_secs: float = 0.0
  pause_secs: float = 0.0
  lost_secs: float = 0.0


def split_step(times: StepTimes) -> NodeTime:
  """Returns the time of all nodes in a step, those that died in it included.

  What nobody accounts for is the bubble. The parts are measured by different
  threads and may overlap a little; what goes beyond the time that there was is
  left out, in the order of the code.
  """
  left = times.num_nodes * times.secs

  def take(node_secs: float) -> float:
    nonlocal left
    taken = min(node_secs, left)
    left -= taken
    return taken

  passes = take(times.useful_secs)
  redundant = take(times.redundant_secs)
  owed = take(times.owed_secs)
  joint = take(times.num_nodes * times.joint_secs)
  refresh = take(times.num_nodes * times.refresh_secs)
  pause = take(times.num_nodes * times.pause_secs)
  return NodeTime(
      useful=passes + joint,
      redundant=redundant + refresh,
      recovery=owed + pause,
      bubble=left,
      lost=times.lost_secs,
      idle=times.num_idle * times.secs,
  )
