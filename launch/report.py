r"""Writes a page on one run or several, trained or simulated, from their folders.

bamboo report runs/cluster
bamboo report runs/cluster runs/sim --out=both.html --figure_format=pdf
bamboo report runs/plain runs/failures --csv=curve

The page is one file that needs nothing else: `report.html` in the folder of a
run; of several, in columns, in this folder. It has losses, throughput, nodes and
dollars over time, recoveries, and where the time of nodes went; of a single run
that trained also its nodes and the last step, as planned and as measured.
With `--json` or `--csv` prints what the page draws instead. The run may still be
running.
"""

from collections.abc import Sequence
import json
import pathlib

from absl import app, flags

from bamboo_jax import base
from bamboo_jax.launch import charge_flags, cli, figure_flags, flag_checks
from bamboo_jax.metrics import progress
from bamboo_jax.report import contents, figures
from bamboo_jax.report.live import document

_WORKDIR = flags.DEFINE_string("workdir", None, "Of the run, instead of an argument.")
_OUT = flags.DEFINE_string("out", None, "The page.")
_JSON = flags.DEFINE_bool("json", False, "Print everything as JSON.")
_CSV = flags.DEFINE_string(
    "csv", None, "Print runs, curve, recoveries, events, or a table of a simulation as CSV."
)
_FORMAT = figure_flags.define()
flags.adopt_module_key_flags(charge_flags)


def main(arguments: Sequence[str]) -> None:
  """Reads the files, and writes the page."""
  folders = [
      pathlib.Path(name) for name in [*([_WORKDIR.value] if _WORKDIR.value else []), *arguments]
  ]
  if not folders:
    raise app.UsageError("Give the folder of a run, such as runs/quickstart.")
  flag_checks.check_one_of(_JSON, _CSV)
  if _JSON.value or _CSV.value:
    flag_checks.check_unused([_OUT, _FORMAT], "with --json or --csv")
  with progress.waiting("the files of runs are read"):
    report = contents.read(folders, charge_flags.given())
  if _JSON.value:
    print(json.dumps(report))
  elif _CSV.value:
    print(contents.to_csv(report, _CSV.value), end="")
  else:
    here = folders[0] if len(folders) == 1 else pathlib.Path()
    path = pathlib.Path(_OUT.value or here / contents.PAGE)
    base.write_atomically(path, document.render(report))
    print(f"report: {path}")
    if _FORMAT.present:
      with progress.waiting("figures are drawn"):
        for file in figures.save_all(report, path.parent, _FORMAT.value):
          print(f"figure: {file}")


if __name__ == "__main__":
  cli.run(main, takes_arguments=True)
