"""Case: the cost of each mode of redundancy in steps without a death.

The processes of all stages run steps of all modes in turns. Pauses after a
death are predicted; `bamboo ablate` measures them in runs with faults.
"""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import functools
import pathlib
import statistics
from typing import Any

from bamboo_jax import base
from bamboo_jax.base import json as json_lib
from bamboo_jax.benchmarks import predict, table, turns
from bamboo_jax.metrics import table as table_lib
from bamboo_jax.schedule import redundancy

MODES = redundancy.MODES
_MIB = 2**20

# Headings and formats, see `table.render`.
_STEPS = (
    "mode={mode} step_ms={step_ms:.1f} predicted={predicted_ms:.1f}"
    " compute={compute_ms:.1f} refresh={refresh_ms:.1f} vote={vote_ms:.2f}"
    " apply={apply_ms:.1f} cpu={cpu_ms:.1f}"
)
_BYTES = (
    "mode={mode} replica_MiB={replica_mib:.1f}"
    " refresh_MiB/step={refresh_mib:.1f} host_MiB={host_mib:.1f}"
    " vote_share={vote_share:.2%}"
)
_RATIOS = (
    "mode={mode} to_none={to_none} predicted={predicted_to_none:.3f}"
    " to_lazy={to_lazy} predicted={predicted_to_lazy:.3f} off={off_points:+.1f}"
)
_EFFECTS = (
    "mode={mode} RF={num_redundant:.1f} planned={planned_redundant}"
    " overhead={overhead:.1%} planned={planned_overhead:.1%}"
    " coverage={coverage:.1%} planned={planned_coverage:.1%}"
)
_SIZES = (
    "stages={num_stages} microbatches={num_microbatches} mode={mode}"
    " rows_ms={compute_ms:.1f} overhead={overhead:.1%} coverage={coverage:.1%}"
    " pause={pause_text}"
)

Rows = Sequence[turns.Row]


def compare(ours: turns.Processes, subject: turns.Subject) -> None:
  """Measures, prints, and writes files."""
  config, plan = subject.config, subject.plan
  options = config.redundancy
  made = {mode: predict.plan_mode(plan, options, mode) for mode in MODES}
  refresh_ms = max(ours.ask(f"refresh {subject.bounds}"))
  names = {mode: f"rows/{mode}" for mode in MODES}
  built = ours.ask(f"build {subject.profile_path} {' '.join(names.values())}")
  filled = FilledSteps(ours, made)
  steps = turns.take_turns(
      {mode: functools.partial(filled.run, mode) for mode in MODES},
      subject.num_rounds,
      begin=filled.begin,
  )
  filled.learn()
  same_state = is_one_state(ours.ask("digests"))
  modes = summarise_modes(
      steps,
      made,
      effects=filled.effects,
      predicted_ms={
          mode: predict.predict_step_ms(plan, own, refresh_ms=refresh_ms)
          for mode, own in made.items()
      },
      replica_bytes={
          mode: max(b[name]["replica_bytes"] for b in built) for mode, name in names.items()
      },
  )
  report = {
      "partition": plan.partition.bounds,
      "options": {
          name: getattr(config.redundancy, name)
          for name in ("margin", "budget", "refresh", "slots")
      },
      "refresh_link_ms": refresh_ms,
      "same_state": same_state,
      "modes": [*modes],
      "sizes": [*predict.predict_sizes(plan, MODES, options)],
  }
  print(render(report))
  write(report, steps, subject.out)
  print(f"files={subject.out}")
  assert same_state, "states of modes, or of replicas, differ"


class FilledSteps:
  """Runs steps of all modes, whose waits are filled as they occur.

  Attributes:
    effects: By mode with redundant forward passes, of each step.
  """

  def __init__(self, ours: turns.Processes, made: Mapping[str, predict.ModePlan]) -> None:
    self._ours = ours
    fillings = {mode: plan.filling for mode, plan in made.items()}
    self._fillings = {mode: f for mode, f in fillings.items() if f}
    self.effects = {mode: [] for mode in self._fillings}
    self._ran = []

  def begin(self, step: int) -> None:
    """Begins a round, in which all modes get the same batch."""
    self.learn()
    self._ours.ask(f"feed {step}")

  def run(self, mode: str) -> turns.Row:
    """Runs a step; returns its measurements."""
    answers = self._ours.ask(f"run rows/{mode}")
    ran = [answer.pop("ran") for answer in answers]
    row = turns.merge(answers)
    self._ran.append((mode, ran))
    return row

  def learn(self) -> None:
    """Finds the effects of the last steps, and lets all processes know."""
    for mode, ran in self._ran:
      if mode in self._fillings:
        effect = self._fillings[mode].find_effect(
            {node: json_lib.from_plain(redundancy.Ran, own) for node, own in enumerate(ran)}
        )
        self.effects[mode].append(effect)
        self._ours.ask(f"learn rows/{mode} {effect.stretch}")
    self._ran = []


def is_one_state(digests: Sequence[Mapping[str, Mapping[str, str]]]) -> bool:
  """Returns whether the hashes of a stage agree in all modes and processes."""
  states = [state for by_mode in digests for state in by_mode.values()]
  found = {entry for by_stage in states for entry in by_stage.items()}
  return len(found) == len({stage for stage, _ in found})


def summarise_modes(
    steps: Mapping[str, Rows],
    made: Mapping[str, predict.ModePlan],
    *,
    effects: Mapping[str, Sequence[redundancy.Effect]],
    predicted_ms: Mapping[str, float],
    replica_bytes: Mapping[str, int],
) -> Iterator[dict[str, Any]]:
  """Yields a row per mode: medians, ratios, predictions, replica bytes."""
  for mode, own in steps.items():
    medians, plan = table.medians(own), made[mode].whole
    # Those of rounds to warm up are the first.
    effect = [(0, 0.0, 0.0, 1.0)] * len(own)
    effect = [*map(dataclasses.astuple, effects.get(mode, ()))] or effect
    filled = [statistics.fmean(e) for e in zip(*effect[-len(own) :], strict=True)]
    to_lazy = table.step_ratio(own, steps["lazy"])
    predicted_to_lazy = predicted_ms[mode] / predicted_ms["lazy"]
    yield {
        "mode": mode,
        **medians,
        "predicted_ms": predicted_ms[mode],
        "num_redundant": filled[0],
        "overhead": filled[1],
        "coverage": filled[2],
        "planned_redundant": plan.timeline.num_redundant,
        "planned_overhead": plan.effect.overhead,
        "planned_coverage": plan.effect.coverage,
        "replica_mib": replica_bytes[mode] / _MIB,
        "refresh_mib": medians["refresh_bytes"] / _MIB,
        "host_mib": medians["host_bytes"] / _MIB,
        "vote_share": statistics.median(row["vote_ms"] / row["step_ms"] for row in own),
        "to_none": table.step_ratio(own, steps["none"]),
        "predicted_to_none": predicted_ms[mode] / predicted_ms["none"],
        "to_lazy": to_lazy,
        "predicted_to_lazy": predicted_to_lazy,
        "off_points": 100 * (to_lazy.median - predicted_to_lazy),
    }


def render(report: Mapping[str, Any]) -> str:
  """Returns all tables as text."""
  modes = report["modes"]
  (lazy,) = (row for row in modes if row["mode"] == "lazy")
  options = " ".join(f"{k}={v}" for k, v in report["options"].items())
  upkeep = lazy["to_none"]
  show = lambda pause: "-" if pause is None else f"{pause:.1%}"
  sizes = [{**s, "pause_text": show(s["pause"])} for s in report["sizes"]]
  parts = [
      f"partition={report['partition']} pairs={upkeep.num_pairs} {options}",
      table.render(modes, _STEPS),
      table.render(modes, _EFFECTS),
      table.render(modes, _BYTES),
      table.render(modes, _RATIOS)
      + f"\nreplica upkeep, lazy to none: {upkeep}, "
      + f"{lazy['refresh_mib']:.1f} MiB per step, sent in "
      + f"{report['refresh_link_ms']:.1f} ms with nothing else to do",
      "Predicted for longer pipelines, with the same work per stage:",
      table.render(sizes, _SIZES),
      f"one_state_in_all_modes_and_replicas={report['same_state']}",
  ]
  return "\n\n".join(parts)


def write(report: Mapping[str, Any], steps: Mapping[str, Rows], out: pathlib.Path) -> None:
  """Writes all numbers to the folder `out`."""
  table.write(out, report, name="mode", steps=steps)
  base.write_atomically(out / "sizes.csv", table_lib.to_csv(report["sizes"]))
