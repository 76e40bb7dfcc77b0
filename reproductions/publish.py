"""Published figures, and the files of simulations beside them."""

from collections.abc import Sequence
import pathlib

from bamboo_jax.base import packaged
from bamboo_jax.experiments import output
from bamboo_jax.metrics import table as table_lib
from bamboo_jax.report import content, page

# Published figures, with their sources.
PUBLISHED = packaged.folder("third_party/published")


def publish(
    workdir: pathlib.Path,
    rows: Sequence[output.Row],
    report: content.Page,
    *,
    formats: Sequence[str],
) -> None:
  """Writes `summary.csv` and `report.html`; prints comparisons and remarks."""
  output.write_summary(workdir, rows)
  page.write_report(workdir, report, formats=formats)
  for table in report.comparisons:
    print(f"\n## {table.title}\n\n{table_lib.to_markdown(table.rows('.2f'))}")
  print("", *report.remarks, sep="\n")
  print(f"\n{workdir / 'summary.csv'}\n{workdir / page.PAGE_NAME}")
