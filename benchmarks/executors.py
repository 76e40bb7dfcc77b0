"""Case: the cost of a step as rows and as one program.

Two processes run steps of both executors in turns: without replicas ("none"),
with replicas ("lazy"), and with all redundant forward passes ("eager"). All
have the same partition, which keeps blocks whole.
"""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import functools
import pathlib
import statistics
from typing import Any

from bamboo_jax import config as config_lib
from bamboo_jax.benchmarks import predict, table, turns
from bamboo_jax.metrics import plots, schedule_plot
from bamboo_jax.plan import planner
from bamboo_jax.schedule import render as grid_lib, timeline as timeline_lib
from bamboo_jax.train.record import step_traces
from bamboo_jax.train.setup import build, executors

MODES = ("none", "lazy", "eager")
VARIANTS = tuple(f"{e}/{mode}" for e in ("rows", "spmd") for mode in MODES)
# Baselines of the variants: steps without redundant forward passes, without and
# with replicas.
PLAIN = ("rows/none", "rows/lazy", "spmd/none", "spmd/lazy")

# Above this difference the two executors would not train the same model.
_MAX_DIFFERENCE = 1e-3
_MIB = 2**20

# Headings and formats, see `table.render`.
_STEPS = (
    "variant={variant} step_ms={step_ms:.1f} predicted={predicted_ms:.1f}"
    " cpu_ms={cpu_ms:.1f} compile_s={compile_secs:.1f}"
    " device_MiB={device_mib:.1f} host_MiB={host_mib:.1f}"
)
_RATIOS = "variant={variant} " + " ".join(f"to_{plain}={{ratios[{plain}]}}" for plain in PLAIN)
_SIZES = (
    "stages={num_stages} microbatches={num_microbatches} rows_ms={rows_ms:.1f}"
    " +RF={rows_redundant:.1%} spmd_ms={program_ms:.1f}"
    " +RF={program_redundant:.1%} spmd/rows={to_rows:.3f}"
    " spmd+RF/rows={redundant_to_rows:.3f} rows_bubble={rows_bubble:.1%}"
    " spmd_bubble={program_bubble:.1%} filled={filled_bubble:.1%}"
    " ticks={num_ticks} free_RF={num_free} RF={num_redundant}"
)

Rows = Sequence[turns.Row]


@dataclasses.dataclass(frozen=True)
class Pair:
  """Both executors, planned for the same pipeline; modes by name."""

  plan: planner.Plan
  rows: dict[str, predict.ModePlan]
  programs: dict[str, executors.ProgramPlan]

  @property
  def timelines(self) -> dict[str, timeline_lib.Timeline]:
    """A step with all redundant forward passes, by executor."""
    return {"rows": self.rows["eager"].whole.timeline, "spmd": self.programs["eager"].plan.timeline}


def compare(ours: turns.Processes, subject: turns.Subject) -> None:
  """Measures, prints, and writes files; stages consist of whole blocks."""
  config, plan = subject.config, subject.plan
  refresh_ms = max(ours.ask(f"refresh {subject.bounds}"))
  built = {}
  for variant in VARIANTS:  # Separately, so that they share no program.
    answers = ours.ask(f"build {subject.profile_path} {variant}")
    built[variant] = turns.merge([answer[variant] for answer in answers])
  steps, difference = run_rounds(ours, num_rounds=subject.num_rounds)
  task = build.make_task(config)
  own = plan_pair(config, task, plan)
  longer = [
      plan_pair(config, task, predict.lengthen(plan, size, is_even=True)) for size in predict.SIZES
  ]
  predicted_ms = {
      variant: predict_step_ms(own, variant, refresh_ms=refresh_ms) for variant in VARIANTS
  }
  report = {
      "partition": plan.partition.bounds,
      "difference": difference,
      "results": [*summarise(steps, built, predicted_ms)],
      "sizes": [summarise_size(pair) for pair in (own, *longer)],
  }
  print(render(report))
  for name, timeline in longer[0].timelines.items():
    grid = grid_lib.render_grid(timeline)
    print(f"\n{name}, {predict.SIZES[0]} stages, predicted:\n{grid}")
  write(report, steps, longer[0], subject.out, subject.formats)
  print(f"\nfiles={subject.out}")
  assert difference < _MAX_DIFFERENCE, "programs and rows differ"


def run_rounds(
    ours: turns.Processes, *, num_rounds: int
) -> tuple[dict[str, list[turns.Row]], float]:
  """Returns steps by variant, and the relative difference of parameters.

  The difference is between programs and rows after the warm-up rounds.
  """
  differences = []
  steps = turns.take_turns(
      {v: functools.partial(ours.run_step, v) for v in VARIANTS},
      num_rounds,
      begin=lambda k: ours.ask(f"feed {k}"),
      when_warm=lambda: differences.extend(ours.ask("difference")),
  )
  return steps, max(differences)


def plan_pair(config: config_lib.Config, task: build.Task, plan: planner.Plan) -> Pair:
  """Returns both executors with all modes; stages must be whole blocks."""
  options, rows, programs = config.redundancy, {}, {}
  for mode in (*MODES, "bubble"):
    changed = config.changed({"redundancy.mode": mode})
    programs[mode] = executors.plan_program(changed, task, plan)
    rows[mode] = predict.plan_mode(plan, options, mode)
  return Pair(plan, rows, programs)


def predict_step_ms(pair: Pair, variant: str, *, refresh_ms: float) -> float:
  """Returns the time of a step without clipping; refresh takes the same."""
  executor, mode = variant.split("/")
  rows = pair.rows[mode]
  step_ms = predict.predict_step_ms(pair.plan, rows, refresh_ms=refresh_ms)
  if executor == "rows":
    return step_ms
  span_ms = pair.programs[mode].plan.timeline.span_ms
  return step_ms - rows.whole.timeline.span_ms + span_ms


def summarise(
    steps: Mapping[str, Rows], built: Mapping[str, turns.Row], predicted_ms: Mapping[str, float]
) -> Iterator[dict[str, Any]]:
  """Yields a row per variant; bytes are those of the largest node."""
  for variant, own in steps.items():
    made = built[variant]
    host_bytes = max(made["host_bytes"], *(step["host_bytes"] for step in own))
    yield {
        "variant": variant,
        "step_ms": statistics.median(step["step_ms"] for step in own),
        "predicted_ms": predicted_ms[variant],
        "cpu_ms": statistics.median(step["cpu_ms"] for step in own),
        "compile_secs": made["compile_secs"],
        "device_mib": made["device_bytes"] / _MIB,
        "host_mib": host_bytes / _MIB,
        "ratios": {p: table.step_ratio(own, steps[p]) for p in PLAIN},
    }


def summarise_size(pair: Pair) -> dict[str, Any]:
  """Returns the predictions for both executors; times are of all passes.

  Columns with `redundant` include all redundant forward passes; bubbles are
  mean shares of the time in which a node runs no pass.
  """
  lazy, eager = pair.rows["lazy"].whole, pair.rows["eager"].whole
  program = pair.programs["eager"]
  filled, plain = program.plan.timeline, program.plain
  rows_ms = lazy.timeline.span_ms
  return {
      "num_stages": pair.plan.num_stages,
      "num_microbatches": pair.plan.batch.num_microbatches,
      "rows_ms": rows_ms,
      "rows_redundant": eager.timeline.span_ms / rows_ms - 1.0,
      "program_ms": plain.span_ms,
      "program_redundant": filled.span_ms / plain.span_ms - 1.0,
      "to_rows": plain.span_ms / rows_ms,
      "redundant_to_rows": filled.span_ms / rows_ms,
      "rows_bubble": lazy.timeline.mean_bubble,
      "program_bubble": plain.mean_bubble,
      "filled_bubble": filled.mean_bubble,
      "num_ticks": len(program.table.ticks),
      "num_free": pair.programs["bubble"].plan.timeline.num_redundant,
      "num_redundant": filled.num_redundant,
  }


def render(report: Mapping[str, Any]) -> str:
  """Returns all tables as text."""
  results = report["results"]
  num_rounds = results[0]["ratios"][PLAIN[0]].num_pairs
  parts = [
      f"partition={report['partition']} pairs={num_rounds} "
      f"difference_to_rows={report['difference']:.1e}",
      table.render(results, _STEPS),
      "Ratios of step times, median and 95 % interval:",
      table.render(results, _RATIOS),
      "Predicted, the measured pipeline first; times of all passes:",
      table.render(report["sizes"], _SIZES),
  ]
  return "\n\n".join(parts)


def write(
    report: Mapping[str, Any],
    steps: Mapping[str, Rows],
    pair: Pair,
    out: pathlib.Path,
    formats: Sequence[str] = ("png",),
) -> None:
  """Writes all numbers, and figures of both schedules, to the folder `out`."""
  table.write(out, report, name="variant", steps=steps)
  for name, timeline in pair.timelines.items():
    figure = schedule_plot.draw_schedule(
        f"A step of {pair.plan.num_stages} stages by {name!r}",
        planned=step_traces.planned_slots([timeline]),
    )
    plots.save_figure(figure, out / f"grid_{name}.png", formats)
