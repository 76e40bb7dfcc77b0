"""The input and output of a decision on recovery; plain values."""

from collections.abc import Mapping
import dataclasses

from bamboo_jax import base, config
from bamboo_jax.base import types
from bamboo_jax.recovery import layout as layout_lib
from bamboo_jax.schedule import failover

# The rungs, the cheapest first.
RUNGS = (
    "none",  # No node that trains is affected.
    "repair",  # Between two steps spares take places, replicas are made.
    "shadow",  # Shadows finish the step for the lost.
    "reroute",  # Other pipelines compute for the lost stages.
    "drop",  # The samples of the pipeline are dropped.
    "reconfigure",  # New pipelines, state from live copies; repeats the step.
    "checkpoint",  # New pipelines, state from the last checkpoint.
    "wait",  # Too few nodes for a pipeline: training waits for more.
    "stop",  # No rung that is switched on applies: the run ends.
)
# After these the step in flight continues, and no state is copied.
IMMEDIATE = frozenset({"none", "shadow", "reroute", "drop"})


@dataclasses.dataclass(frozen=True)
class Change:
  """The events since the last decision; nodes by number.

  Attributes:
    lost: Nodes that died or left.
    joined: New nodes. A node that returns has a new number, because its old one
      may still mark a vacant place.
    noticed: Nodes whose preemption was announced.
    zones: Zone of each node; missing nodes have none.
  """

  lost: frozenset[base.NodeId] = frozenset()
  joined: tuple[base.NodeId, ...] = ()
  noticed: frozenset[base.NodeId] = frozenset()
  zones: Mapping[base.NodeId, str] = dataclasses.field(default_factory=dict)


NOTHING = Change()


@dataclasses.dataclass(frozen=True)
class Ladder:
  """The rungs that are switched on; by default as in a cluster.

  Bamboo is shadow, reconfigure and checkpoint; Oobleck reconfigure and
  checkpoint; ReCycle reroute by stage and checkpoint; Varuna checkpoint.

  Attributes:
    has_replicas: Stages have replicas, so shadows finish steps.
    rerouting: The nodes that compute for lost stages, if `options.reroute`. "shares":
      all nodes with a copy of the stage, each for some shares, even if its shadow
      lives. "whole_shares": pipelines without lost stages, each for some shares of
      the whole pipeline, as programs of SPMD need. "stage": owners of the same
      stage, as in ReCycle; only simulated.
  """

  options: config.RecoverySection = config.RecoverySection()
  has_replicas: bool = True
  rerouting: str = "shares"

  @property
  def reroute(self) -> str:
    """`rerouting`, or "none"."""
    return self.rerouting if self.options.reroute else "none"


@dataclasses.dataclass(frozen=True)
class Decision:
  """The rung that is taken, and the layout that follows.

  Attributes:
    rung: One of `RUNGS`; with several pipelines the most expensive one taken.
    layout: From now on; by `decide` without shares, which `assignment` deals.
    reason: Why that rung was taken, for people.
    repairs: Spares that take places, by pipeline.
    gone: Places that lost owner and replica, in the pipelines before.
    rolls_back: Whether the steps since the last checkpoint are lost.
    copies: State to copy between nodes first, by `assignment`.
  """

  rung: str
  layout: layout_lib.Layout
  reason: str
  repairs: Mapping[int, failover.Repair] = dataclasses.field(default_factory=dict)
  gone: tuple[types.Place, ...] = ()
  rolls_back: bool = False
  copies: tuple[failover.StageCopy, ...] = ()

  @property
  def is_immediate(self) -> bool:
    """Whether the step in flight continues without copies of state."""
    return self.rung in IMMEDIATE
