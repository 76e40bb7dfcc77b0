"""What the benchmark of executors has found: numbers, tables and files."""

from collections.abc import Mapping, Sequence
import dataclasses
import json
import pathlib
import statistics
from typing import Any

from bamboo_jax import base
from bamboo_jax.metrics import plots
from bamboo_jax.metrics import table
from bamboo_jax.schedule import render
from bamboo_jax.train import hooks
from launch import ratios
from launch.executors import measure
from launch.executors import predict

_MIB = 2**20
# What every variant is compared with: steps without redundant forward passes,
# without and with replicas.
PLAIN = ("rows/none", "rows/lazy", "spmd/none", "spmd/lazy")

Steps = Mapping[str, Sequence[measure.Step]]


@dataclasses.dataclass(frozen=True)
class Result:
  """One executor with one mode of redundancy.

  Attributes:
    variant: Executor and mode.
    step_ms: Median time of a step.
    predicted_ms: Time that it should take.
    cpu_ms: Median processor time of the process with most.
    compile_secs: Time to compile everything, of the slowest process.
    device_bytes: Device memory by our own count, of the node with most.
    host_bytes: Kept in host memory during a step, of the node with most.
    padding_bytes: Of all that, what equal stages waste, of the node with most.
    ratios: Of step times, to each of `PLAIN` in the same round.
  """

  variant: str
  step_ms: float
  predicted_ms: float
  cpu_ms: float
  compile_secs: float
  device_bytes: int
  host_bytes: int
  padding_bytes: int
  ratios: dict[str, ratios.Ratio]


@dataclasses.dataclass(frozen=True)
class Report:
  """Everything.

  Attributes:
    partition: First layer of each stage, then the number of layers.
    difference: Of parameters between programs and rows; see `run_rounds`.
    results: One entry per variant.
    sizes: What is expected of the measured pipeline, and of longer ones.
  """

  partition: tuple[int, ...]
  difference: float
  results: Sequence[Result]
  sizes: Sequence[predict.Size]


def summarise(
    steps: Steps,
    built: Mapping[str, Mapping[str, float]],
    predicted_ms: Mapping[str, float],
) -> list[Result]:
  """Returns what the steps of each variant come to.

  Args:
    steps: By variant.
    built: What the processes answered when they built the variants.
    predicted_ms: Time of a step by variant.
  """
  times = {v: [step.step_ms for step in own] for v, own in steps.items()}
  results = []
  for variant, own in steps.items():
    host_bytes = max(step.host_bytes for step in own)
    results.append(
        Result(
            variant=variant,
            step_ms=statistics.median(times[variant]),
            predicted_ms=predicted_ms[variant],
            cpu_ms=statistics.median(step.cpu_ms for step in own),
            compile_secs=built[variant]["compile_secs"],
            device_bytes=built[variant]["device_bytes"],
            host_bytes=max(host_bytes, built[variant]["host_bytes"]),
            padding_bytes=built[variant]["padding_bytes"],
            ratios={
                plain: ratios.paired_ratio(times[variant], times[plain])
                for plain in PLAIN
            },
        )
    )
  return results


def render_report(report: Report) -> str:
  """Returns all tables, one after the other."""
  num_rounds = report.results[0].ratios[PLAIN[0]].num_pairs
  parts = [
      f"partition={report.partition} pairs={num_rounds} "
      f"difference_to_rows={report.difference:.1e}",
      _render_steps(report.results),
      "Ratios of step times, median and 95 % interval:",
      _render_ratios(report.results),
      "Predicted, the measured pipeline first; times of all passes:",
      _render_sizes(report.sizes),
  ]
  return "\n\n".join(parts)


def _render_steps(results: Sequence[Result]) -> str:
  rows = [
      (
          "variant step_ms predicted cpu_ms compile_s device_MiB host_MiB"
          " padding_MiB"
      ).split()
  ]
  for r in results:
    sizes = (r.device_bytes, r.host_bytes, r.padding_bytes)
    rows.append(
        [
            r.variant,
            *(f"{ms:.1f}" for ms in (r.step_ms, r.predicted_ms, r.cpu_ms)),
            f"{r.compile_secs:.1f}",
            *(f"{size / _MIB:.1f}" for size in sizes),
        ]
    )
  return table.align(rows)


def _render_ratios(results: Sequence[Result]) -> str:
  rows = [["variant", *(f"to {plain}" for plain in PLAIN)]]
  for r in results:
    found = [r.ratios[plain] for plain in PLAIN]
    cells = [f"{f.median:.3f} [{f.low:.3f}, {f.high:.3f}]" for f in found]
    rows.append([r.variant, *cells])
  return table.align(rows)


def _render_sizes(sizes: Sequence[predict.Size]) -> str:
  rows = [
      (
          "stages microbatches rows_ms +RF spmd_ms +RF spmd/rows spmd+RF/rows"
          " rows_bubble spmd_bubble filled ticks idle free_RF RF"
      ).split()
  ]
  percent = lambda share: f"{100 * share:.1f}%"
  for s in sizes:
    rows.append(
        [
            f"{s.num_stages}",
            f"{s.num_microbatches}",
            f"{s.rows_ms:.1f}",
            percent(s.rows_redundant_ms / s.rows_ms - 1.0),
            f"{s.program_ms:.1f}",
            percent(s.program_redundant_ms / s.program_ms - 1.0),
            f"{s.program_ms / s.rows_ms:.3f}",
            f"{s.program_redundant_ms / s.rows_ms:.3f}",
            *map(percent, (s.rows_bubble, s.program_bubble, s.filled_bubble)),
            *map(str, (s.num_ticks, s.idle_slots, s.num_free, s.num_redundant)),
        ]
    )
  return table.align(rows)


def render_grids(pair: predict.Pair) -> dict[str, str]:
  """Returns rows and ticks with all redundant forward passes, as text."""
  timelines = _timelines(pair)
  return {name: render.render_grid(t) for name, t in timelines.items()}


def _timelines(pair: predict.Pair) -> dict[str, Any]:
  return {
      "rows": pair.rows["eager"].whole.timeline,
      "spmd": pair.programs["eager"].plan.timelines[0],
  }


def write(
    report: Report, steps: Steps, pair: predict.Pair, out: pathlib.Path
) -> None:
  """Writes all numbers, and figures of both grids, into the folder `out`."""
  text = json.dumps(dataclasses.asdict(report), indent=2) + "\n"
  base.write_atomically(out / "report.json", text)
  rows = [
      {"round": k, "variant": variant} | dataclasses.asdict(step)
      for variant, own in steps.items()
      for k, step in enumerate(own)
  ]
  base.write_atomically(out / "steps.csv", table.to_csv(rows))
  for name, timeline in _timelines(pair).items():
    plots.plot_schedule(
        out / f"grid_{name}.png",
        planned=hooks.planned_slots([timeline]),
        title=f"A step of {pair.plan.num_stages} stages by {name!r}",
    )
