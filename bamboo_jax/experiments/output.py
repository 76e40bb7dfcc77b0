"""How experiments run, and the tables and files that they end with."""

from collections.abc import Callable, Mapping, Sequence
import concurrent.futures
import contextlib
import multiprocessing
import os
import pathlib
from typing import TypeVar

from bamboo_jax import base
from bamboo_jax.metrics import progress as progress_lib
from bamboo_jax.metrics import table as table_lib
from bamboo_jax.report import content
from bamboo_jax.report import page

# Figures of others, with their sources.
PUBLISHED = (
    pathlib.Path(__file__).resolve().parents[2] / "third_party/published"
)

_Job = TypeVar("_Job")
_Result = TypeVar("_Result")
Row = Mapping[str, str | int | float | None]


def write_summary(workdir: pathlib.Path, rows: Sequence[Row]) -> None:
  """Writes `summary.csv`; its columns are the keys of the first row.

  Raises `ValueError` if there is nothing to write.
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

  Jobs are plain values, sent to one process for each core by default; with one,
  everything runs here. Shows the number of runs done, and what is described.
  """
  if num_processes is None:
    num_processes = len(os.sched_getaffinity(0))
  if num_processes < 1:
    raise ValueError(f"num_processes must be from 1, got {num_processes}.")
  results, num_done = [], 0
  with contextlib.ExitStack() as stack:
    num_steps = sum(map(num_runs, jobs))
    bar = stack.enter_context(progress_lib.Progress(num_steps=num_steps))
    play_all = map
    if min(num_processes, len(jobs)) > 1:
      # If started anew they share no locks and no threads with this one.
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
    workdir: pathlib.Path, rows: Sequence[Row], report: content.Report
) -> None:
  """Writes `summary.csv` and `report.html`; prints comparisons and remarks."""
  write_summary(workdir, rows)
  page.write_report(workdir, report)
  for table in report.comparisons:
    print(f"\n## {table.title}\n\n{render(table, digits=2)}")
  print("", *report.remarks, sep="\n")
  print(f"\n{workdir / 'summary.csv'}\n{workdir / page.PAGE_NAME}")


def render(comparison: content.Comparison, *, digits: int) -> str:
  """Returns a comparison as Markdown, figures with `digits` decimals."""
  return table_lib.to_markdown(comparison.rows(f".{digits}f"))


def render_rows(
    rows: Sequence[Row], columns: Sequence[str] | None = None
) -> str:
  """Returns rows as Markdown; their columns are by default all."""
  columns = list(columns or rows[0])
  lines = [[_show(row[name]) for name in columns] for row in rows]
  return table_lib.to_markdown([columns, *lines])


def _show(value: str | int | float | None) -> str:
  if isinstance(value, float):
    return f"{value:.4g}"
  return "–" if value is None else str(value)
