"""What the benchmark of redundancy has found: numbers, tables and files."""

from collections.abc import Mapping, Sequence
import dataclasses
import json
import pathlib
import statistics
from typing import Any

from bamboo_jax import base
from bamboo_jax.metrics import table
from launch import ratios
from launch.redundancy import measure
from launch.redundancy import plot
from launch.redundancy import predict

Steps = Mapping[str, Sequence[measure.Step]]
Deaths = Sequence[Sequence[measure.DeathTime]]  # By repeat.


@dataclasses.dataclass(frozen=True)
class ModeResult:
  """One mode; times are medians over its steps.

  Attributes:
    mode: The mode.
    step: Times and bytes of a step.
    predicted_ms: Time that a step should take.
    overhead: Predicted time of the rows over that without redundant forward
      passes, less 1.
    coverage: Share of lost forward passes that need not be run again.
    num_redundant: Redundant forward passes of a step.
    replica_bytes: State of replicas, on the node with most.
    to_none: Ratio of step times to mode "none", of the same round.
    to_lazy: The same to mode "lazy".
    vote_share: Share of the vote in a step.
  """

  mode: str
  step: measure.Step
  predicted_ms: float
  overhead: float
  coverage: float
  num_redundant: int
  replica_bytes: int
  to_none: ratios.Ratio
  to_lazy: ratios.Ratio
  vote_share: float


@dataclasses.dataclass(frozen=True)
class Pause:
  """How much longer a step with a death takes; means over nodes and times.

  Attributes:
    mode: The mode.
    measured_ms: Of medians over repeats.
    predicted_ms: By the plan.
    to_lazy: Ratio to mode "lazy" of the same repeat.
    predicted_to_lazy: By the plan.
  """

  mode: str
  measured_ms: float
  predicted_ms: float
  to_lazy: ratios.Ratio
  predicted_to_lazy: float


@dataclasses.dataclass(frozen=True)
class Report:
  """Everything.

  Attributes:
    partition: First layer of each stage, then the number of layers.
    options: Settings of redundancy.
    refresh_link_ms: Time of a refresh with nothing else to do.
    same_state: Whether all modes, and all replicas, ended in the same state.
    modes: One entry per mode.
    deaths: One entry per mode, node and time; medians over repeats.
    pauses: One entry per mode with replicas.
    sizes: Predictions for longer pipelines.
  """

  partition: tuple[int, ...]
  options: Mapping[str, Any]
  refresh_link_ms: float
  same_state: bool
  modes: Sequence[ModeResult]
  deaths: Sequence[measure.DeathTime]
  pauses: Sequence[Pause]
  sizes: Sequence[predict.Prediction]


def find_ratio(steps: Steps, mode: str, *, to: str) -> ratios.Ratio:
  """Returns the ratio of step times of two modes, round by round."""
  return ratios.paired_ratio(
      [step.step_ms for step in steps[mode]],
      [step.step_ms for step in steps[to]],
  )


def summarise_mode(
    mode: str,
    plan: predict.ModePlan,
    steps: Steps,
    *,
    predicted_ms: float,
    replica_bytes: int,
) -> ModeResult:
  """Returns what the steps of a mode come to."""
  own = steps[mode]
  return ModeResult(
      mode=mode,
      step=_median(own),
      predicted_ms=predicted_ms,
      overhead=plan.whole.overhead,
      coverage=plan.whole.coverage,
      num_redundant=plan.whole.num_redundant,
      replica_bytes=replica_bytes,
      to_none=find_ratio(steps, mode, to="none"),
      to_lazy=find_ratio(steps, mode, to="lazy"),
      vote_share=statistics.median(s.vote_ms / s.step_ms for s in own),
  )


def summarise_deaths(deaths: Deaths) -> list[measure.DeathTime]:
  """Returns each death with the medians over repeats."""
  return [_median(same) for same in zip(*deaths, strict=True)]


def compare_pauses(deaths: Deaths, modes: Sequence[str]) -> list[Pause]:
  """Returns the pause of each mode that survives deaths."""
  medians = summarise_deaths(deaths)
  lazy_ms = [_mean(found, "lazy", "longer_ms") for found in deaths]
  lazy_predicted_ms = _mean(medians, "lazy", "predicted_longer_ms")
  pauses = []
  for mode in modes:
    if not any(death.mode == mode for death in medians):
      continue
    own_ms = [_mean(found, mode, "longer_ms") for found in deaths]
    predicted_ms = _mean(medians, mode, "predicted_longer_ms")
    pauses.append(
        Pause(
            mode=mode,
            measured_ms=_mean(medians, mode, "longer_ms"),
            predicted_ms=predicted_ms,
            to_lazy=ratios.paired_ratio(own_ms, lazy_ms),
            predicted_to_lazy=predicted_ms / lazy_predicted_ms,
        )
    )
  return pauses


def write(
    report: Report, steps: Steps, deaths: Deaths, out: pathlib.Path
) -> None:
  """Writes all numbers and a figure into the folder `out`."""
  text = json.dumps(dataclasses.asdict(report), indent=2) + "\n"
  base.write_atomically(out / "report.json", text)
  rows = [
      {"round": k, "mode": mode} | dataclasses.asdict(step)
      for mode, own in steps.items()
      for k, step in enumerate(own)
  ]
  base.write_atomically(out / "steps.csv", table.to_csv(rows))
  rows = [
      {"repeat": k} | dataclasses.asdict(death)
      for k, found in enumerate(deaths)
      for death in found
  ]
  base.write_atomically(out / "deaths.csv", table.to_csv(rows))
  rows = [dataclasses.asdict(size) for size in report.sizes]
  base.write_atomically(out / "sizes.csv", table.to_csv(rows))
  plot.plot_modes(out / "overhead_pause.png", _points(report))


def _points(report: Report) -> list[plot.Point]:
  """Returns the modes that survive deaths, as they are drawn."""
  by_mode = {m.mode: m for m in report.modes}
  predicted_lazy_ms = by_mode["lazy"].predicted_ms
  return [
      plot.Point(
          mode=pause.mode,
          overhead=by_mode[pause.mode].to_lazy.median - 1.0,
          predicted_overhead=by_mode[pause.mode].predicted_ms
          / predicted_lazy_ms
          - 1.0,
          pause_ms=pause.measured_ms,
          predicted_pause_ms=pause.predicted_ms,
      )
      for pause in report.pauses
  ]


def _median(same: Sequence[Any]) -> Any:
  """Returns a dataclass with the medians of its numbers, counts stay whole."""
  changes = {}
  for field in dataclasses.fields(same[0]):
    values = [getattr(s, field.name) for s in same]
    if not isinstance(values[0], str):
      is_count = isinstance(values[0], int)
      median = statistics.median_low if is_count else statistics.median
      changes[field.name] = median(values)
  return dataclasses.replace(same[0], **changes)


def _mean(deaths: Sequence[measure.DeathTime], mode: str, name: str) -> float:
  return statistics.mean(getattr(d, name) for d in deaths if d.mode == mode)
