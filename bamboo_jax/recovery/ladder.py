"""The facts that recovery decides from, and the decision; plain values."""

from collections.abc import Mapping
import dataclasses

from bamboo_jax import base
from bamboo_jax.base import types
from bamboo_jax.plan import pipelines as pipelines_lib
from bamboo_jax.schedule import failover

# What a decision may be, the cheapest first.
RUNGS = (
    "none",  # No node that trains is concerned.
    "repair",  # Between two steps spares take places, replicas are made.
    "shadow",  # Shadows finish the step for the lost.
    "reroute",  # Other pipelines compute what the lost stages would have.
    "drop",  # The samples of the pipeline are left out.
    "reconfigure",  # New pipelines, state from live copies; the step again.
    "checkpoint",  # New pipelines, state from the last checkpoint.
    "wait",  # Too few nodes for a pipeline: training stands still.
    "stop",  # No rung that is switched on can help.
)
# After these the step in flight goes on, and no state is copied.
IMMEDIATE = frozenset({"none", "shadow", "reroute", "drop"})
WHEN = ("step", "boundary")
REROUTES = ("pipeline", "shares", "stage", "none")
REREPLICATE = ("at_commit", "at_repair")


@dataclasses.dataclass(frozen=True)
class State:
  """Pipelines and spares.

  Attributes:
    pipelines: Empty if training stands still.
    spares: Live nodes that own nothing, in the order of their use.
    leaving: Live nodes whose preemption has been announced.
    zones: Nodes that are missing are in none.
    dissolved: Pipelines that were taken apart in the step in flight. Until its
      commit their live nodes, spares now, have the state of their stages.
  """

  pipelines: tuple[pipelines_lib.Pipeline, ...]
  spares: tuple[int, ...] = ()
  leaving: frozenset[int] = frozenset()
  zones: Mapping[int, str] = dataclasses.field(default_factory=dict)
  dissolved: tuple[pipelines_lib.Pipeline, ...] = ()

  @property
  def holders(self) -> tuple[pipelines_lib.Pipeline, ...]:
    """The pipelines whose nodes have the state of their stages."""
    return self.pipelines + self.dissolved

  @property
  def nodes(self) -> tuple[int, ...]:
    """All live nodes: pipeline by pipeline, then the spares."""
    return (*(n for p in self.pipelines for n in p.nodes), *self.spares)


@dataclasses.dataclass(frozen=True)
class Change:
  """The events since the last decision; nodes by number.

  One that comes back and has `joined` has a new number: the old one may still
  stand for a vacant place. Those `noticed` will be preempted soon.
  """

  lost: frozenset[int] = frozenset()
  joined: tuple[int, ...] = ()
  noticed: frozenset[int] = frozenset()
  zones: Mapping[int, str] = dataclasses.field(default_factory=dict)


NOTHING = Change()


@dataclasses.dataclass(frozen=True)
class Ladder:
  """The rungs that are switched on; the defaults are what clusters do.

  Bamboo is shadow, reconfigure and checkpoint; Oobleck reconfigure and
  checkpoint; ReCycle reroute by stage and checkpoint; Varuna checkpoint.

  Attributes:
    shadow: Stages have replicas, and shadows finish steps.
    reroute: Who computes lost stages. "pipeline": whole pipelines do the work
      of broken ones, whose nodes become spares. "shares": all that hold a
      lost stage do its part, also if its shadow lives, share by share.
      "stage": owners of the same stage do. "none": nobody.
    drop: Pipelines with lost stages are left out of the step.
    reconfigure: New pipelines are made from live copies.
    checkpoint: Training goes back to the last checkpoint.
    fold: With too few nodes for a pipeline, nodes own several stages of one.
    hand_over: Between two steps nodes under notice give up what they own.
    rereplicate: When stages that a death left without a replica get one:
      "at_commit" of the step, or "at_repair", when a spare comes.
    horizon_secs: Between two steps pipelines are changed if the pause is made
      up for within this time.
  """

  shadow: bool = True
  reroute: str = "pipeline"
  drop: bool = False
  reconfigure: bool = True
  checkpoint: bool = True
  fold: bool = True
  hand_over: bool = True
  rereplicate: str = "at_commit"
  horizon_secs: float = 600.0

  def __post_init__(self) -> None:
    for name, allowed in (("reroute", REROUTES), ("rereplicate", REREPLICATE)):
      if getattr(self, name) not in allowed:
        raise ValueError(base.suggest(getattr(self, name), allowed, what=name))
    if not self.horizon_secs > 0:
      raise ValueError(
          f"horizon_secs must be positive, got {self.horizon_secs}."
      )


@dataclasses.dataclass(frozen=True)
class Decision:
  """The rung that is taken, and the state that follows.

  Attributes:
    rung: One of `RUNGS`; with several pipelines the most expensive one taken.
    repairs: By pipeline, which spares take places.
    gone: The stages that lost owner and replica, by pipelines before.
    rolls_back: Whether the steps since the last checkpoint are lost.
  """

  rung: str
  state: State
  reason: str
  repairs: Mapping[int, failover.Repair] = dataclasses.field(
      default_factory=dict
  )
  gone: tuple[types.Place, ...] = ()
  rolls_back: bool = False

  @property
  def is_immediate(self) -> bool:
    """Whether the step in flight goes on, and no state is copied first."""
    return self.rung in IMMEDIATE
