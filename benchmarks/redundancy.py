"""Case: the cost of each mode of redundancy, and of a death.

Two processes run steps of all modes in turns. Then each node dies at several
times of a step, in all modes that survive it: the process of the victim stops
there, and the survivor plans and runs the rest alone, on its own core.
Detection takes no time here.
"""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import functools
import pathlib
import statistics
from typing import Any

from bamboo_jax import base
from bamboo_jax.base import json as json_lib
from bamboo_jax.benchmarks import deaths as deaths_lib
from bamboo_jax.benchmarks import predict
from bamboo_jax.benchmarks import table
from bamboo_jax.benchmarks import turns
from bamboo_jax.metrics import plots
from bamboo_jax.metrics import table as table_lib
from bamboo_jax.schedule import filling as filling_lib
from bamboo_jax.schedule import redundancy
from bamboo_jax.train.setup import build

MODES = redundancy.MODES
_WHOLE_EVERY = 4  # Deaths between steps without one.
_MIB = 2**20
# Okabe and Ito's colours, which most colour-blind readers can tell apart.
_COLOURS = ("#000000", "#0072B2", "#009E73", "#D55E00", "#CC79A7")

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
_DEATHS = (
    "mode={mode} stage={victim} at={at} before={before} died_ms={died_ms:.1f}"
    " planned={planned_died_ms:.1f} longer_ms={longer_ms:.1f}"
    " predicted={predicted_longer_ms:.1f} plan_ms={plan_ms:.1f}"
    " passes={num_passes}"
)
_PAUSES = (
    "mode={mode} pause_ms={measured_ms:.1f} predicted={predicted_ms:.1f}"
    " to_lazy={to_lazy} predicted={predicted_to_lazy:.3f}"
)
_SIZES = (
    "stages={num_stages} microbatches={num_microbatches} mode={mode}"
    " rows_ms={compute_ms:.1f} overhead={overhead:.1%} coverage={coverage:.1%}"
    " pause={pause_text}"
)

Rows = Sequence[turns.Row]
_Point = tuple[float, float]


def compare(ours: turns.Processes, subject: turns.Subject) -> None:
  """Measures, prints, and writes files."""
  config, plan = subject.config, subject.plan
  options = build.make_redundancy(config)
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
  has_deaths = plan.num_stages == 2 and subject.num_repeats > 0
  deaths = run_deaths(ours, made, subject) if has_deaths else []
  modes = summarise_modes(
      steps,
      made,
      effects=filled.effects,
      predicted_ms={
          mode: predict.predict_step_ms(plan, own, refresh_ms=refresh_ms)
          for mode, own in made.items()
      },
      replica_bytes={
          mode: max(b[name]["replica_bytes"] for b in built)
          for mode, name in names.items()
      },
  )
  report = {
      "partition": plan.partition.bounds,
      "options": {
          name: config.redundancy[name]
          for name in ("margin", "overrun", "budget", "refresh", "slots")
      },
      "refresh_link_ms": refresh_ms,
      "same_state": same_state,
      "modes": [*modes],
      "deaths": summarise_deaths(deaths),
      "pauses": [*compare_pauses(deaths)] if deaths else [],
      "sizes": [*predict.predict_sizes(plan, MODES, options)],
  }
  print(render(report))
  write(report, steps, deaths, subject.out, subject.formats)
  print(f"files={subject.out}")
  assert same_state, "states of modes, or of replicas, differ"


class FilledSteps:
  """Runs steps of all modes, whose waits are filled as they occur.

  Attributes:
    effects: By mode with redundant forward passes, of each step.
  """

  def __init__(
      self, ours: turns.Processes, made: Mapping[str, predict.ModePlan]
  ) -> None:
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
            {
                node: json_lib.from_plain(filling_lib.Ran, own)
                for node, own in enumerate(ran)
            }
        )
        self.effects[mode].append(effect)
        self._ours.ask(f"learn rows/{mode} {effect.stretch}")
    self._ran = []


def run_deaths(
    ours: turns.Processes,
    made: Mapping[str, predict.ModePlan],
    subject: turns.Subject,
) -> list[list[turns.Row]]:
  """Returns the deaths of each repeat, in the same order.

  All modes with replicas take turns; each runs some steps without a death
  between those with one. Sums over the batch must be equal to the bit.
  """
  planned = {
      mode: deaths_lib.spread_deaths(plan, num_deaths=subject.num_deaths)
      for mode, plan in made.items()
      if plan.roles.shadows
  }
  ours.ask("feed 0")
  repeats = []
  rounds = range(1 + subject.num_repeats)
  for repeat in turns.show_progress(rounds, name="deaths"):
    found = []
    for mode, entries in planned.items():
      whole, answers = [], []
      for k, death in enumerate(entries):
        if k % _WHOLE_EVERY == 0:
          whole.append(ours.ask(f"compute rows/{mode}"))
        answers.append(ours.ask(f"die rows/{mode} {death.victim} {death.at}"))
      found += [
          {"mode": mode, **make_death(made[mode], death, whole, answer)}
          for death, answer in zip(entries, answers, strict=True)
      ]
    if repeat:  # The first one warms up caches.
      repeats.append(found)
  return repeats


def make_death(
    plan: predict.ModePlan,
    death: deaths_lib.Death,
    whole: Sequence[Rows],
    answers: Rows,
) -> turns.Row:
  """Returns the row of a death on two nodes.

  `longer_ms` is the delay of the end of the rows against a step without a death
  in the same repeat, `whole`; it includes `plan_ms`, the time to plan the rest.
  """
  survivor = answers[1 - death.victim]
  for step in whole:
    sums = {stage: s for a in step for stage, s in a["sums"].items()}
    assert survivor["sums"] == sums, death
  whole_ms = statistics.median(max(a["ms"] for a in step) for step in whole)
  return {
      "victim": death.victim,
      "at": death.at,
      "before": death.before,
      "died_ms": answers[death.victim]["died_ms"],
      "longer_ms": survivor["ms"] - whole_ms,
      "plan_ms": survivor["plan_ms"],
      "num_passes": survivor["num_passes"],
      "planned_died_ms": death.died_ms,
      "predicted_longer_ms": deaths_lib.predict_longer_ms(death, plan),
  }


def is_one_state(digests: Sequence[Mapping[str, Mapping[str, str]]]) -> bool:
  """Returns whether the hashes of a stage agree in all modes and processes."""
  states = [state for by_mode in digests for state in by_mode.values()]
  found = {entry for by_stage in states for entry in by_stage.items()}
  return len(found) == len({stage for stage, _ in found})


def summarise_modes(
    steps: Mapping[str, Rows],
    made: Mapping[str, predict.ModePlan],
    *,
    effects: Mapping[str, Sequence[filling_lib.Effect]],
    predicted_ms: Mapping[str, float],
    replica_bytes: Mapping[str, int],
) -> Iterator[dict[str, Any]]:
  """Yields a row per mode: medians, ratios, predictions, replica bytes."""
  for mode, own in steps.items():
    medians, plan = table.medians(own), made[mode].whole
    # Those of rounds to warm up are the first.
    effect = [(0, 0.0, 0.0, 1.0)] * len(own)
    effect = [*map(dataclasses.astuple, effects.get(mode, ()))] or effect
    filled = [
        statistics.fmean(e) for e in zip(*effect[-len(own) :], strict=True)
    ]
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
        "planned_overhead": plan.overhead,
        "planned_coverage": plan.coverage,
        "replica_mib": replica_bytes[mode] / _MIB,
        "refresh_mib": medians["refresh_bytes"] / _MIB,
        "host_mib": medians["host_bytes"] / _MIB,
        "vote_share": statistics.median(
            row["vote_ms"] / row["step_ms"] for row in own
        ),
        "to_none": table.step_ratio(own, steps["none"]),
        "predicted_to_none": predicted_ms[mode] / predicted_ms["none"],
        "to_lazy": to_lazy,
        "predicted_to_lazy": predicted_to_lazy,
        "off_points": 100 * (to_lazy.median - predicted_to_lazy),
    }


def summarise_deaths(deaths: Sequence[Rows]) -> list[dict[str, Any]]:
  """Returns each death with the medians over repeats."""
  return [table.medians(same) for same in zip(*deaths, strict=True)]


def compare_pauses(deaths: Sequence[Rows]) -> Iterator[dict[str, Any]]:
  """Yields a row for each mode that survives deaths, with the mean pause.

  The pause is the delay of a step by a death: the mean over nodes and times, of
  medians over repeats; `to_lazy` is its ratio to mode "lazy" of the same
  repeat.
  """
  medians = summarise_deaths(deaths)

  def mean(rows: Rows, mode: str, name: str = "longer_ms") -> float:
    return statistics.mean(row[name] for row in rows if row["mode"] == mode)

  lazy_ms = [mean(found, "lazy") for found in deaths]
  lazy_predicted_ms = mean(medians, "lazy", "predicted_longer_ms")
  for mode in dict.fromkeys(row["mode"] for row in medians):
    predicted_ms = mean(medians, mode, "predicted_longer_ms")
    own_ms = [mean(found, mode) for found in deaths]
    yield {
        "mode": mode,
        "measured_ms": mean(medians, mode),
        "predicted_ms": predicted_ms,
        "to_lazy": table.paired_ratio(own_ms, lazy_ms),
        "predicted_to_lazy": predicted_ms / lazy_predicted_ms,
    }


def render(report: Mapping[str, Any]) -> str:
  """Returns all tables as text."""
  modes = report["modes"]
  (lazy,) = (row for row in modes if row["mode"] == "lazy")
  options = " ".join(f"{k}={v}" for k, v in report["options"].items())
  upkeep = lazy["to_none"]
  show = lambda pause: "-" if pause is None else f"{pause:.1%}"
  sizes = [{**s, "pause_text": show(s["pause"])} for s in report["sizes"]]
  deaths = report["deaths"] and [
      "Deaths, one row per stage and time of death:",
      table.render(report["deaths"], _DEATHS),
      table.render(report["pauses"], _PAUSES),
  ]
  parts = [
      f"partition={report['partition']} pairs={upkeep.num_pairs} {options}",
      table.render(modes, _STEPS),
      table.render(modes, _EFFECTS),
      table.render(modes, _BYTES),
      table.render(modes, _RATIOS)
      + f"\nreplica upkeep, lazy to none: {upkeep}, "
      + f"{lazy['refresh_mib']:.1f} MiB per step, sent in "
      + f"{report['refresh_link_ms']:.1f} ms with nothing else to do",
      *deaths,
      "Predicted for longer pipelines, with the same work per stage:",
      table.render(sizes, _SIZES),
      f"one_state_in_all_modes_and_replicas={report['same_state']}",
  ]
  return "\n\n".join(parts)


def write(
    report: Mapping[str, Any],
    steps: Mapping[str, Rows],
    deaths: Sequence[Rows],
    out: pathlib.Path,
    formats: Sequence[str] = ("png",),
) -> None:
  """Writes all numbers and a figure to the folder `out`."""
  table.write(out, report, name="mode", steps=steps)
  rows = [
      {"repeat": k, **row} for k, found in enumerate(deaths) for row in found
  ]
  if rows:
    base.write_atomically(out / "deaths.csv", table_lib.to_csv(rows))
  base.write_atomically(out / "sizes.csv", table_lib.to_csv(report["sizes"]))
  modes = {row["mode"]: row for row in report["modes"]}
  pairs = ((modes[pause["mode"]], pause) for pause in report["pauses"])
  points = {
      mode["mode"]: (
          (mode["to_lazy"].median - 1.0, pause["measured_ms"]),
          (mode["predicted_to_lazy"] - 1.0, pause["predicted_ms"]),
      )
      for mode, pause in pairs
  }
  if points:
    plots.save_figure(draw_modes(points), out / "overhead_pause.png", formats)


def draw_modes(modes: Mapping[str, tuple[_Point, _Point]]) -> Any:
  """Returns a figure with two points for each mode, measured and predicted.

  A point is the overhead of a step over mode "lazy", as a fraction, and the
  pause of a death in ms.
  """
  fig, [[axes]] = plots.new_figure((7, 4.5))
  axes.set(
      title="Redundancy: its cost without and with a death",
      xlabel="step without a death, longer than with lazy (%)",
      ylabel="step with a death, longer than without (ms)",
  )
  for (name, points), colour in zip(modes.items(), _COLOURS, strict=False):
    x, y = [100 * x for x, _ in points], [y for _, y in points]
    axes.plot(x, y, color=colour, linewidth=0.8, linestyle=":")
    axes.plot(x[:1], y[:1], "o", color=colour, label=name)
    axes.plot(x[1:], y[1:], "o", color=colour, fillstyle="none")
  axes.plot([], [], "o", color="#999999", label="measured")
  axes.plot([], [], "o", color="#999999", fillstyle="none", label="predicted")
  axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
  axes.legend(frameon=False)
  return fig
