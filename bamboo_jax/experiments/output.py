"""Runs experiments on all cores; estimates from many runs; tables and files."""

from collections.abc import Callable, Mapping, Sequence
import concurrent.futures
import contextlib
import dataclasses
import math
import multiprocessing
import os
import pathlib
import statistics
from typing import TypeVar

from bamboo_jax import base
from bamboo_jax.base import packaged
from bamboo_jax.metrics import progress as progress_lib
from bamboo_jax.metrics import table as table_lib
from bamboo_jax.report import content
from bamboo_jax.report import page

# Published figures, with their sources.
PUBLISHED = packaged.folder("third_party/published")

# Student's t for a two-sided 95 % interval, by degrees of freedom from 1.
_STUDENT = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
_NORMAL = 1.960

_Job = TypeVar("_Job")
_Result = TypeVar("_Result")
Row = Mapping[str, str | int | float | None]


@dataclasses.dataclass(frozen=True)
class Estimate:
  """Mean of runs, and half its 95 % confidence interval; None for one run."""

  mean: float
  half_width: float | None
  num_runs: int

  def at(self, rate: float) -> content.Point:
    """Returns the point of a curve."""
    half, low, high = self.half_width, None, None
    if half is not None:
      low, high = self.mean - half, self.mean + half
    return content.Point(rate, self.mean, low, high, self.num_runs)


def estimate(values: Sequence[float]) -> Estimate:
  """Returns the mean of independent values."""
  mean = statistics.fmean(values)
  if len(values) == 1:
    return Estimate(mean, None, 1)
  freedom = len(values) - 1
  factor = _STUDENT[freedom - 1] if freedom <= len(_STUDENT) else _NORMAL
  spread = statistics.stdev(values)
  half_width = factor * spread / math.sqrt(len(values))
  return Estimate(mean, half_width, len(values))


def write_summary(workdir: pathlib.Path, rows: Sequence[Row]) -> None:
  """Writes `summary.csv`; its columns are the keys of the first row.

  Raises `ValueError` if there are no rows.
  """
  if not rows:
    raise ValueError("The config leaves no line for summary.csv.")
  text = table_lib.to_csv(rows, digits=6)
  base.write_atomically(workdir / "summary.csv", text)


def run_all(
    function: Callable[[_Job], _Result],
    jobs: Sequence[_Job],
    *,
    num_runs: Callable[[_Job], int],
    describe: Callable[[_Job], Mapping[str, str | float]],
    num_processes: int | None = None,
) -> list[_Result]:
  """Returns the results of `function`, of a module, for `jobs`, in order.

  Jobs are plain values, sent to `num_processes` processes, by default one per
  core; with one, everything runs in this process. Shows the number of finished
  runs, of `num_runs`, labelled `describe`.
  """
  if num_processes is None:
    num_processes = len(os.sched_getaffinity(0))
  if num_processes < 1:
    raise ValueError(f"num_processes must be from 1, got {num_processes}.")
  results, num_done = [], 0
  with contextlib.ExitStack() as stack:
    num_steps = sum(map(num_runs, jobs))
    bar = stack.enter_context(
        progress_lib.Progress(num_steps=num_steps, unit="run")
    )
    play_all = map
    if min(num_processes, len(jobs)) > 1:
      # Spawned processes inherit no locks and no threads.
      pool = concurrent.futures.ProcessPoolExecutor(
          min(num_processes, len(jobs)),
          mp_context=multiprocessing.get_context("spawn"),
      )
      play_all = stack.enter_context(pool).map
    for job, result in zip(jobs, play_all(function, jobs), strict=True):
      results.append(result)
      num_done += num_runs(job)
      bar.show_step(num_done, describe(job))
  return results


def publish(
    workdir: pathlib.Path,
    rows: Sequence[Row],
    report: content.Report,
    *,
    formats: Sequence[str],
) -> None:
  """Writes `summary.csv` and `report.html`; prints comparisons and remarks."""
  write_summary(workdir, rows)
  page.write_report(workdir, report, formats=formats)
  for table in report.comparisons:
    print(f"\n## {table.title}\n\n{table_lib.to_markdown(table.rows('.2f'))}")
  print("", *report.remarks, sep="\n")
  print(f"\n{workdir / 'summary.csv'}\n{workdir / page.PAGE_NAME}")


def render_rows(
    rows: Sequence[Row], columns: Sequence[str] | None = None
) -> str:
  """Returns rows as Markdown; by default with all columns."""
  columns = list(columns or rows[0])
  lines = [[_show(row[name]) for name in columns] for row in rows]
  return table_lib.to_markdown([columns, *lines])


def _show(value: str | int | float | None) -> str:
  if isinstance(value, float):
    return f"{value:.4g}"
  return "–" if value is None else str(value)
