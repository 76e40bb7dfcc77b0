"""Durations of steps, changes and losses in a simulation.

A `Speed` tells how long a step of given pipelines lasts: predicted or looked up
in a table (see `speed`), or measured on a cluster. Measured times of a cluster
replace the predicted time of steps of the same numbers of nodes and pipelines;
other predictions are scaled by the slowdown of the whole cluster.
"""

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any, Protocol

from bamboo_jax import base, config as config_lib
from bamboo_jax.accounting import account as account_lib
from bamboo_jax.plan import cost_model, pipelines as pipelines_lib
from bamboo_jax.recovery import decide, moves

Pipelines = Sequence[pipelines_lib.Pipeline]


@dataclasses.dataclass(frozen=True)
class StepCost:
  """A step of given pipelines, with its trained and dropped samples.

  `shares` are those of the time of nodes with a stage; they add up to 1.
  """

  secs: float
  num_samples: float
  num_dropped: float = 0.0
  shares: account_lib.NodeTime = account_lib.NodeTime(useful=1.0)

  def __post_init__(self) -> None:
    if not self.secs > 0:
      raise ValueError(f"secs of a step must be above 0, got {self.secs}.")


def split_time(*, whole: float, **parts: float) -> account_lib.NodeTime:
  """Returns parts of a time as shares of the whole, clipped to a sum of 1; the rest is a bubble."""
  left, shares = 1.0, {}
  for kind, part in parts.items():
    shares[kind] = min(left, part / whole)
    left -= shares[kind]
  return account_lib.NodeTime(**shares, bubble=left)


@dataclasses.dataclass(frozen=True)
class Delay:
  """A delay of `secs`, plus a share of the rest of the step."""

  secs: float = 0.0
  left_share: float = 0.0


class Speed(Protocol):
  """Predicts the speed of pipelines."""

  def step(self, pipelines: Pipelines, *, drops: bool) -> StepCost:
    """Returns the cost of a step.

    If a stage is vacant in one pipeline, other pipelines compute it; with
    `drops` the pipeline does not train.
    """

  def finish(self, rung: str, before: Pipelines, after: Pipelines) -> Delay:
    """Returns the delay of a step in which nodes are lost.

    `rung` is the one taken, "shadow" or "reroute".
    """


class PipelineTimes:
  """Adds the cost of changes to the speed of pipelines; a `planner.Times`.

  With `drops`, pipelines with vacant stages do not train. The profile predicts
  copies of state; None if the durations include them.
  """

  def __init__(
      self,
      speed: Speed,
      durations: config_lib.DurationsSection,
      *,
      drops: bool,
      profile: cost_model.Profile | None,
  ) -> None:
    self.durations = durations
    self._speed, self._drops, self._profile = speed, drops, profile
    self._costs: dict[tuple[Any, ...], StepCost] = {}

  def cost(self, pipelines: Pipelines) -> StepCost:
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
    durations = self.durations
    if rung == "checkpoint":
      pause_secs = durations.restart_secs + durations.load_secs
      return pause_secs + (durations.save_secs if before else 0.0)
    return self._change_secs(rung, before, after)

  def delay(self, decision: decide.Decision, before: Pipelines, *, when: str) -> Delay:
    """Returns the delay by a decision, without the time to detect losses.

    `before` are the pipelines that trained until then.
    """
    rung, after = decision.rung, decision.layout.pipelines
    if rung in ("none", "wait", "stop"):
      return Delay()
    if rung == "checkpoint":
      kept = () if decision.rolls_back else before
      return Delay(self.pause_secs(rung, kept, after))
    if decision.is_immediate and not decision.is_repaired:
      if when == "boundary" or rung == "drop":
        return Delay()
      return self._speed.finish(rung, before, after)
    return Delay(self._change_secs(rung, before, after, decision.layout.live))

  def _change_secs(
      self,
      rung: str,
      before: Pipelines,
      after: Pipelines,
      live: Sequence[base.NodeId] | None = None,
  ) -> float:
    durations = self.durations
    secs = durations.reconfigure_secs if rung == "reconfigure" else durations.repair_secs
    return secs + (moves.copy_secs(self._profile, before, after, live) if self._profile else 0.0)


class MeasuredSpeed:
  """A `Speed` with the mean cost of measured steps, by numbers of nodes and pipelines.

  `whole` is the step with all nodes.
  """

  def __init__(
      self, speed: Speed, costs: Mapping[tuple[int, int], StepCost], *, whole: Pipelines
  ) -> None:
    self._speed, self._costs = speed, costs
    predicted_secs = speed.step(whole, drops=False).secs
    self._factor = self._costs[_size(whole)].secs / predicted_secs

  def step(self, pipelines: Pipelines, *, drops: bool) -> StepCost:
    """Returns the cost of a step, measured if one of that size was measured."""
    if found := self._costs.get(_size(pipelines)):
      return found
    cost = self._speed.step(pipelines, drops=drops)
    return dataclasses.replace(cost, secs=self._factor * cost.secs)

  def finish(self, rung: str, before: Pipelines, after: Pipelines) -> Delay:
    delay = self._speed.finish(rung, before, after)
    return dataclasses.replace(delay, secs=self._factor * delay.secs)


def _size(pipelines: Pipelines) -> tuple[int, int]:
  return sum(len(p.nodes) for p in pipelines), len(pipelines)
