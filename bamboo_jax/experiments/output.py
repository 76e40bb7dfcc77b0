"""How experiments run, and the tables and files that they end with."""

from collections.abc import Callable, Mapping, Sequence
import itertools
import pathlib
from typing import TypeVar

from bamboo_jax import base
from bamboo_jax.metrics import progress as progress_lib
from bamboo_jax.metrics import table as table_lib
from bamboo_jax.report import content
from bamboo_jax.report import page
from bamboo_jax.sim import monte_carlo

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
  """Returns the results of jobs as `monte_carlo.run_all`; shows progress."""
  done = list(itertools.accumulate(map(num_runs, jobs)))
  with progress_lib.Progress(num_steps=done[-1]) as bar:
    return monte_carlo.run_all(
        function,
        jobs,
        num_processes=num_processes,
        on_done=lambda n: bar.show_step(done[n - 1], describe(jobs[n - 1])),
    )


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
