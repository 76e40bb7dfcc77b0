"""Durations of steps, changes and losses in a simulation."""

from collections.abc import Sequence
import dataclasses
import math
from typing import Any

from bamboo_jax.plan import cost_model
from bamboo_jax.recovery import ladder as ladder_lib
from bamboo_jax.recovery import moves
from bamboo_jax.sim import speed as speed_lib

Pipelines = speed_lib.Pipelines
StepCost = speed_lib.StepCost


@dataclasses.dataclass(frozen=True, kw_only=True)
class Durations:
  """Times in seconds; copies of state between nodes are added to them.

  Attributes:
    boot_secs: From the arrival of a node until it can train.
    detect_secs: From a loss without notice to the decision about it.
    repair_secs: Pause when a spare takes a place.
    reconfigure_secs: Pause when new pipelines are formed.
    restart_secs: Time to end and start all processes.
    load_secs: Time to load a checkpoint after that.
    save_secs: Time to save one, while training goes on.
    stall_secs: Pause to copy the state for a save.
    save_every_secs: Interval of saves; 0: there are none.
  """

  boot_secs: float = 45.0
  detect_secs: float = 1.0
  repair_secs: float = 2.0
  reconfigure_secs: float = 10.0
  restart_secs: float = 40.0
  load_secs: float = 20.0
  save_secs: float = 30.0
  stall_secs: float = 1.0
  save_every_secs: float = 600.0

  def __post_init__(self) -> None:
    for name, value in dataclasses.asdict(self).items():
      if not 0 <= value < math.inf:
        raise ValueError(f"{name} must be at least 0, got {value}.")


class Times:
  """Adds the cost of changes to the speed of pipelines; a `planner.Times`.

  With `drops`, pipelines with vacant stages do not train. The profile predicts
  copies of state; None if the durations include them.
  """

  def __init__(
      self,
      speed: speed_lib.Speed,
      durations: Durations,
      *,
      drops: bool,
      profile: cost_model.Profile | None,
  ) -> None:
    self._speed = speed
    self._durations = durations
    self._drops = drops
    self._profile = profile
    self._costs: dict[tuple[Any, ...], StepCost] = {}

  def cost(self, pipelines: Pipelines) -> StepCost:
    """Returns the cost of a step."""
    key = tuple(p.shape for p in pipelines)
    if key not in self._costs:
      self._costs[key] = self._speed.step(pipelines, drops=self._drops)
    return self._costs[key]

  def step_secs(self, pipelines: Pipelines) -> float:
    """Returns the time of a step, per whole batch if samples are dropped."""
    cost = self.cost(pipelines)
    return cost.secs * (1.0 + cost.num_dropped / cost.num_samples)

  def pause_secs(self, rung: str, before: Pipelines, after: Pipelines) -> float:
    """Returns the pause of training for a change between two steps.

    A restart from training pipelines saves first.
    """
    durations = self._durations
    if rung == "checkpoint":
      pause_secs = durations.restart_secs + durations.load_secs
      return pause_secs + (durations.save_secs if before else 0.0)
    return self._fixed_secs(rung) + self._copy_secs(before, after)

  def delay(
      self, decision: ladder_lib.Decision, before: Pipelines, *, when: str
  ) -> speed_lib.Delay:
    """Returns the delay by a decision, without the time to detect losses.

    `before` are the pipelines that trained until then.
    """
    rung, after = decision.rung, decision.state.pipelines
    if rung in ("none", "wait", "stop"):
      return speed_lib.Delay()
    if rung == "checkpoint":
      kept = () if decision.rolls_back else before
      return speed_lib.Delay(self.pause_secs(rung, kept, after))
    if decision.is_immediate and not decision.repairs:
      if when == "boundary" or rung == "drop":
        return speed_lib.Delay()
      return self._speed.finish(rung, before, after)
    copy_secs = self._copy_secs(before, after, decision.state.nodes)
    return speed_lib.Delay(self._fixed_secs(rung) + copy_secs)

  def _fixed_secs(self, rung: str) -> float:
    if rung == "reconfigure":
      return self._durations.reconfigure_secs
    return self._durations.repair_secs

  def _copy_secs(
      self,
      before: Pipelines,
      after: Pipelines,
      live: Sequence[int] | None = None,
  ) -> float:
    if self._profile is None:
      return 0.0
    return moves.copy_secs(self._profile, before, after, live)
