"""The facts that recovery decides from, and what it decides.

Everything is a plain value, so that the runtime, the cluster and the simulator
can ask the same question and get the same answer; see `recovery.decide`.
"""

from collections.abc import Collection, Mapping, Sequence
import dataclasses
from typing import Protocol

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
WHEN = ("step", "boundary")


@dataclasses.dataclass(frozen=True)
class State:
  """Who does what.

  Attributes:
    pipelines: The pipelines that train; none if training stands still.
    spares: Live nodes that own nothing, in the order of their use.
    leaving: Live nodes whose preemption has been announced.
    zones: Zone of each node; a node that is missing is in a zone of its own.
  """

  pipelines: tuple[pipelines_lib.Pipeline, ...]
  spares: tuple[int, ...] = ()
  leaving: frozenset[int] = frozenset()
  zones: Mapping[int, str] = dataclasses.field(default_factory=dict)

  @property
  def nodes(self) -> tuple[int, ...]:
    """All live nodes: pipeline by pipeline, then the spares."""
    return (*(n for p in self.pipelines for n in p.nodes), *self.spares)


@dataclasses.dataclass(frozen=True)
class Change:
  """What has happened since the last decision; nodes by number.

  Attributes:
    lost: Nodes that have died.
    joined: Nodes that are ready to train. One that comes back has a new
      number: the old one may still stand for a vacant place.
    noticed: Nodes that will be preempted soon.
    zones: Zones of the nodes that have joined.
  """

  lost: frozenset[int] = frozenset()
  joined: tuple[int, ...] = ()
  noticed: frozenset[int] = frozenset()
  zones: Mapping[int, str] = dataclasses.field(default_factory=dict)


NOTHING = Change()


@dataclasses.dataclass(frozen=True)
class Ladder:
  """Which rungs there are.

  Bamboo is shadow, reconfigure and checkpoint; Oobleck reconfigure and
  checkpoint; ReCycle-style reroute and checkpoint; Varuna checkpoint.

  Attributes:
    shadow: Stages have replicas, and shadows finish steps.
    reroute: Other pipelines compute for stages that are lost.
    drop: Pipelines with lost stages are left out of the step.
    reconfigure: New pipelines are made from live copies.
    checkpoint: Training goes back to the last checkpoint.
    rereplicate: When stages that a death left without a replica get one:
      "at_commit" of the step, or "at_repair", when a spare comes.
    horizon_secs: Between two steps pipelines are changed if the pause is made
      up for within this time.
  """

  shadow: bool = True
  reroute: bool = True
  drop: bool = False
  reconfigure: bool = True
  checkpoint: bool = True
  rereplicate: str = "at_commit"
  horizon_secs: float = 600.0

  def __post_init__(self) -> None:
    if self.rereplicate not in ("at_commit", "at_repair"):
      raise ValueError(
          "rereplicate must be at_commit or at_repair, got "
          f"{self.rereplicate!r}."
      )
    if not self.horizon_secs > 0:
      raise ValueError(
          f"horizon_secs must be positive, got {self.horizon_secs}."
      )


class Planner(Protocol):
  """Makes pipelines and says what they cost; pure."""

  def fresh(
      self, nodes: Sequence[int], zones: Mapping[int, str]
  ) -> tuple[pipelines_lib.Pipeline, ...]:
    """Returns pipelines of any of `nodes`, for a start from a checkpoint.

    Raises:
      base.InfeasibleError: There are too few nodes for one pipeline.
    """

  def adapt(
      self,
      pipelines: Sequence[pipelines_lib.Pipeline],
      nodes: Collection[int],
      zones: Mapping[int, str],
  ) -> tuple[pipelines_lib.Pipeline, ...]:
    """Returns pipelines of any of `nodes` that follow `pipelines`.

    Args:
      pipelines: Those until now; their nodes that are not in `nodes` are lost.
      nodes: All nodes that may be used, in the order of their use.
      zones: Zones of the nodes.

    Raises:
      base.InfeasibleError: There are too few nodes for one pipeline.
    """

  def step_secs(self, pipelines: Sequence[pipelines_lib.Pipeline]) -> float:
    """Returns the time of a step, for a whole batch if samples are dropped."""

  def pause_secs(
      self,
      rung: str,
      before: Sequence[pipelines_lib.Pipeline],
      after: Sequence[pipelines_lib.Pipeline],
  ) -> float:
    """Returns for how long a change between two steps stops training."""


@dataclasses.dataclass(frozen=True)
class Decision:
  """What to do about a change.

  Attributes:
    rung: One of `RUNGS`; with several pipelines the most expensive one taken.
    state: Who does what from now on.
    reason: Why, in words.
    repairs: By pipeline, what spares and shadows have to copy.
    gone: Pipeline and index of each stage that lost owner and replica.
    rolls_back: Whether the steps since the last checkpoint are lost.
  """

  rung: str
  state: State
  reason: str
  repairs: Mapping[int, failover.Repair] = dataclasses.field(
      default_factory=dict
  )
  gone: tuple[tuple[int, int], ...] = ()
  rolls_back: bool = False
