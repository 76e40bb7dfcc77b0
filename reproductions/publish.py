"""Published figures, and the files of simulations beside them."""

from collections.abc import Sequence
import pathlib

from bamboo_jax.base import packaged
from bamboo_jax.experiments import output
from bamboo_jax.metrics import table as table_lib
from bamboo_jax.report import contents

# Published figures, with their sources.
PUBLISHED = packaged.folder("third_party/published")


def publish(
    workdir: pathlib.Path,
    rows: Sequence[output.Row],
    report: contents.Value,
    *,
    formats: Sequence[str],
) -> None:
  """Writes `summary.csv` and the report; prints tables and remarks."""
  output.write_summary(workdir, table_lib.of(rows))
  contents.write(workdir, report, formats)
  for table in report["tables"].values():
    print(f"\n## {table['title']}\n\n{table_lib.to_markdown(table, digits=2)}")
  print("", *report["remarks"], sep="\n")
  print(f"\n{workdir / 'summary.csv'}\n{workdir / contents.PAGE}")
