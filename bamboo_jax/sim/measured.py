"""The times of a real cluster: durations of changes, and steps by size.

`bamboo profile --cluster` writes them as JSON. Processes that share cores, as
on one machine, are slower than a profile of one of them predicts; so steps of a
measured size take the measured time, and other predictions are scaled by the
slowdown of the whole cluster.
"""

import dataclasses
import json
import os
import pathlib

from bamboo_jax.base import json as json_lib
from bamboo_jax.sim import speed as speed_lib
from bamboo_jax.sim import times as times_lib

Delay = speed_lib.Delay
Pipelines, StepCost = speed_lib.Pipelines, speed_lib.StepCost


@dataclasses.dataclass(frozen=True)
class SizedStep:
  """The mean cost of a step with these numbers of nodes and pipelines."""

  num_nodes: int
  num_pipelines: int
  cost: StepCost


@dataclasses.dataclass(frozen=True)
class Measured:
  """The times of a cluster; the first of `steps` is of all its nodes."""

  durations: times_lib.Durations
  steps: tuple[SizedStep, ...]

  def __str__(self) -> str:
    durations = dataclasses.asdict(self.durations).items()
    lines = [f"{name}={secs:.3f}" for name, secs in durations]
    lines += [
        f"nodes={step.num_nodes} pipelines={step.num_pipelines} "
        f"step_ms={1e3 * step.cost.secs:.1f}"
        for step in self.steps
    ]
    return "\n".join(lines)

  def to_json(self) -> str:
    """Returns the text of a file for `read`."""
    return json.dumps(json_lib.to_plain(self), indent=2) + "\n"


def read(path: str | os.PathLike[str]) -> Measured:
  """Reads a file; raises `OSError`, or `ValueError` for any other file."""
  try:
    content = json.loads(pathlib.Path(path).read_text(encoding="utf-8-sig"))
  except ValueError as error:
    raise ValueError(f"{path} is not JSON: {error}") from error
  return json_lib.from_plain(Measured, content, where=os.fspath(path))


class MeasuredSpeed:
  """A `speed.Speed` with measured steps; `whole` are the steps of all nodes."""

  def __init__(
      self, speed: speed_lib.Speed, measured: Measured, *, whole: Pipelines
  ) -> None:
    self._speed = speed
    self._costs = {(s.num_nodes, s.num_pipelines): s for s in measured.steps}
    predicted_secs = speed.step(whole, drops=False).secs
    self._factor = self._costs[_size(whole)].cost.secs / predicted_secs

  def step(self, pipelines: Pipelines, *, drops: bool) -> StepCost:
    """Returns the cost of a step, measured if one of that size was."""
    if found := self._costs.get(_size(pipelines)):
      return found.cost
    cost = self._speed.step(pipelines, drops=drops)
    return dataclasses.replace(cost, secs=self._factor * cost.secs)

  def finish(self, rung: str, before: Pipelines, after: Pipelines) -> Delay:
    """Returns the delay of a step that loses nodes."""
    delay = self._speed.finish(rung, before, after)
    return dataclasses.replace(delay, secs=self._factor * delay.secs)


def _size(pipelines: Pipelines) -> tuple[int, int]:
  return sum(len(p.nodes) for p in pipelines), len(pipelines)
