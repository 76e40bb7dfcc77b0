r"""Compares two runs: losses side by side, and whether they end in one state.

bamboo compare runs/quickstart/plain runs/quickstart/failures

With `--out=losses.png` draws the losses over each other, with deaths marked,
and above them a step as the first run has planned it.
Prints `identical` and returns 0 if the states after the last step are the same
to the bit; otherwise prints the differences and returns 1.
"""

from collections.abc import Sequence
import pathlib
import sys

from absl import app, flags

from bamboo_jax.launch import cli, figure_flags, flag_checks
from bamboo_jax.metrics import jsonl, progress
from bamboo_jax.report import comparison

_LINES = flags.DEFINE_integer("lines", 12, "How many steps to print of each run.", lower_bound=1)
_OUT = flags.DEFINE_string("out", None, "Figure of both losses to draw.")
_FORMAT = figure_flags.define()


def main(arguments: Sequence[str]) -> None:
  """Prints the comparison."""
  if len(arguments) != 2:
    raise app.UsageError("Give two workdirs to compare.")
  flag_checks.check_needs([_FORMAT], _OUT)
  formats = figure_flags.of_file(_FORMAT, _OUT.value)
  folders = [pathlib.Path(name) for name in arguments]
  logs = [jsonl.read_lines(folder / "metrics.jsonl") for folder in folders]
  columns = (jsonl.column(log, "loss") for log in logs)
  first, second = (dict(zip(*column, strict=True)) for column in columns)
  steps = sorted(first.keys() & second.keys())
  every = max(1, len(steps) // _LINES.value)
  print(f"{'step':>6}  {folders[0].name:>10}  {folders[1].name:>10}")
  for step in steps[every - 1 :: every]:
    print(f"{step:>6}  {first[step]:>10.6f}  {second[step]:>10.6f}")
  if _OUT.value:
    with progress.waiting("figures are drawn"):
      paths = comparison.save_figure(folders, _OUT.value, formats)
    for path in paths:
      print(f"figure: {path}")
  if not comparison.show_ends(folders, logs):
    sys.exit(1)
  print("identical")


if __name__ == "__main__":
  cli.run(main, takes_arguments=True)
