"""The input and output of a decision on recovery; plain values."""

from collections.abc import Mapping
import dataclasses

from bamboo_jax import base
from bamboo_jax.base import types
from bamboo_jax.plan import pipelines as pipelines_lib
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
WHEN = ("step", "boundary")
REROUTES = ("shares", "whole_shares", "stage", "none")


@dataclasses.dataclass(frozen=True)
class State:
  """Pipelines and spares.

  Attributes:
    pipelines: Empty if training waits.
    spares: Live nodes without a stage, in the order of their use.
    leaving: Live nodes whose preemption has been announced.
    zones: Zone of each node; missing nodes have none.
  """

  pipelines: tuple[pipelines_lib.Pipeline, ...]
  spares: tuple[base.NodeId, ...] = ()
  leaving: frozenset[base.NodeId] = frozenset()
  zones: Mapping[base.NodeId, str] = dataclasses.field(default_factory=dict)

  @property
  def nodes(self) -> tuple[base.NodeId, ...]:
    """All live nodes: pipeline by pipeline, then the spares."""
    return (*(n for p in self.pipelines for n in p.nodes), *self.spares)


@dataclasses.dataclass(frozen=True)
class Change:
  """The events since the last decision; nodes by number.

  Attributes:
    lost: Nodes that died or left.
    joined: New nodes. A node that returns has a new number, because its old one
      may still mark a vacant place.
    noticed: Nodes whose preemption was announced.
    zones: Zones of nodes, to add to those known.
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
    shadow: Stages have replicas, and shadows finish steps.
    reroute: The nodes that compute for lost stages. "shares": all nodes with a
      copy of the stage, each for some shares, even if its shadow lives.
      "whole_shares": pipelines without lost stages, each for some shares of the
      whole pipeline, as programs of SPMD need. "stage": owners of the same
      stage, as in ReCycle; only simulated. "none": none.
    drop: Pipelines with lost stages take no part in the step.
    reconfigure: New pipelines are made from live copies.
    checkpoint: Training returns to the last checkpoint.
    fold: With too few nodes for a pipeline, nodes own several stages of one.
    hand_over: Between two steps nodes under notice give up their stages.
    horizon_secs: Between two steps pipelines are changed if the shorter steps
      make up for the pause within this time.
  """

  shadow: bool = True
  reroute: str = "shares"
  drop: bool = False
  reconfigure: bool = True
  checkpoint: bool = True
  fold: bool = True
  hand_over: bool = True
  horizon_secs: float = 600.0

  def __post_init__(self) -> None:
    if self.reroute not in REROUTES:
      raise ValueError(base.suggest(self.reroute, REROUTES, what="reroute"))
    if not self.horizon_secs > 0:
      raise ValueError(f"horizon_secs must be positive, got {self.horizon_secs}.")


@dataclasses.dataclass(frozen=True)
class Decision:
  """The rung that is taken, and the state that follows.

  Attributes:
    rung: One of `RUNGS`; with several pipelines the most expensive one taken.
    state: Pipelines and spares from now on.
    reason: Why that rung was taken, for people.
    repairs: Spares that take places, by pipeline.
    gone: Places that lost owner and replica, in the pipelines before.
    rolls_back: Whether the steps since the last checkpoint are lost.
  """

  rung: str
  state: State
  reason: str
  repairs: Mapping[int, failover.Repair] = dataclasses.field(default_factory=dict)
  gone: tuple[types.Place, ...] = ()
  rolls_back: bool = False

  @property
  def is_immediate(self) -> bool:
    """Whether the step in flight continues without copies of state."""
    return self.rung in IMMEDIATE
