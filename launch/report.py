r"""Writes a page on one run or several, trained or simulated, and says what they cost.

bamboo report runs/cluster
bamboo report runs/cluster --instance=p4d.24xlarge
bamboo report runs/cluster runs/sim --out=both.html --figure_format=pdf
bamboo report runs/quickstart/plain runs/quickstart/failures --same
bamboo report runs/plain runs/failures --csv=curve

Prints where the time of the nodes went, and dollars, at the prices of the config
of each run unless flags override them (docs/guides/cost.md); without an instance
(`config.cost.instance` or `--instance`) there are no dollars. With `--json` or
`--csv` prints what the page draws instead. The page is one file that needs
nothing else: `report.html` in the folder of a run; of several, in columns, or of
a run in a bucket, in this folder. It has losses, throughput, nodes and dollars over
time, recoveries, and where time went; of a single run that trained also its nodes
and the last step, as planned and as measured. The run may still be running.

With `--same` prints `identical` and returns 0 if all runs end in the same state,
to the bit; otherwise prints the differences and returns 1.
"""

import dataclasses
import json
import pathlib
import sys

from bamboo_jax import base
from bamboo_jax.accounting import prices as prices_lib
from bamboo_jax.cli.flagset import flag, part
from bamboo_jax.cluster import mirror
from bamboo_jax.launch import cli
from bamboo_jax.metrics import plots, progress, table as table_lib
from bamboo_jax.report import contents, figures
from bamboo_jax.report.live import words


@dataclasses.dataclass(frozen=True)
class PriceFlags:
  """Prices in place of those of the config."""

  instance: str | None = flag(None, "Charge nodes as these.")
  market: str | None = flag(None, "Which prices to pay.", choices=prices_lib.MARKETS)
  prices: str | None = flag(None, "File of prices.")
  region: str | None = flag(None, "Take the price of this region.")
  date: str | None = flag(None, "Take the price of this date.")

  def given(self) -> dict[str, str | None]:
    """Returns the entries of `config.cost` that are given, and what these reset."""
    found = {name: value for name, value in vars(self).items() if value is not None}
    if "instance" in found or "prices" in found:  # Another node, or another list.
      found |= {"region": self.region, "date": self.date}
    return found


@dataclasses.dataclass(frozen=True)
class ReportFlags:
  """The runs, and what is told of them."""

  workdirs: tuple[str, ...] = flag(
      (), "Folders of runs, or URLs of runs in buckets.", takes_rest=True, takes_bucket=True
  )
  out: str | None = flag(None, "The page.", excludes="json csv")
  json: bool = flag(False, "Print everything as JSON.", excludes="csv figure_format")
  csv: str | None = flag(
      None,
      "Print runs, curve, recoveries, events, or a table of a simulation as CSV.",
      excludes="figure_format",
  )
  same: bool = flag(False, "Fail unless all runs end in one state.", excludes="json csv")
  figure_format: tuple[str, ...] = flag(
      (), "Formats of figures beside the page, such as png,pdf.", choices=plots.FORMATS
  )
  price: PriceFlags = part(PriceFlags)


def main(flags: ReportFlags) -> None:
  """Reads the files, and prints and writes what they tell."""
  if not flags.workdirs:
    raise ValueError("Name the workdir of a run: bamboo report runs/cluster")
  if flags.same and len(flags.workdirs) == 1:
    raise ValueError(f"--same compares the ends of several runs, got {flags.workdirs[0]}.")
  with progress.waiting("the files of runs are read"):
    folders = [mirror.look(name) for name in flags.workdirs]
    if flags.out:
      cli.check_folder(flags.out)
    for name, folder in zip(flags.workdirs, folders, strict=True):
      if base.is_bucket(name) and not (folder / "metrics.jsonl").exists():
        raise ValueError(f"The run at {name} has no checkpoint yet; its log comes with the first.")
    report = contents.read(folders, flags.price.given())
    if flags.same:
      contents.check_ended(folders)
  if flags.json:
    print(json.dumps(report))
  elif flags.csv:
    print(contents.to_csv(report, flags.csv), end="")
  if flags.json or flags.csv:
    return
  runs = report["tables"].get("runs")  # None: published tables only.
  for table in [runs] if runs else report["tables"].values():
    print(table_lib.to_markdown(table))
  if runs and not any("price" in row[:1] for row in runs["rows"]):
    print("cost: not known; --instance=NAME says what a node is charged as")
  is_here = len(folders) == 1 and not base.is_bucket(flags.workdirs[0])
  here = folders[0] if is_here else pathlib.Path()
  path = pathlib.Path(flags.out or here / contents.PAGE)
  base.write_atomically(path, words.render_page(report))
  print(f"report: {path}")
  if flags.figure_format:
    with progress.waiting("figures are drawn"):
      for file in figures.save_all(report, path.parent, flags.figure_format):
        print(f"figure: {file}")
  if flags.same:
    if not contents.show_ends(folders):
      sys.exit(1)
    print("identical")


if __name__ == "__main__":
  cli.run(main)
