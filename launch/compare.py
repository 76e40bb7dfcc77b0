r"""Compares two runs: losses side by side, and whether they end in one state.

bamboo compare runs/quickstart/plain runs/quickstart/failures

With `--out=losses.png` draws the losses over each other, with deaths marked.
Prints `identical` and returns 0 if the states after the last step are the same
to the bit; otherwise prints the differences and returns 1.
"""

from collections.abc import Sequence
import pathlib
import sys

from absl import app
from absl import flags

from bamboo_jax.launch import cli
from bamboo_jax.launch import figure_flags
from bamboo_jax.launch import flag_checks
from bamboo_jax.metrics import jsonl
from bamboo_jax.metrics import loss_plot
from bamboo_jax.metrics import plots
from bamboo_jax.metrics import summary as summary_lib

_LINES = flags.DEFINE_integer(
    "lines", 12, "How many steps to print of each run.", lower_bound=1
)
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
    runs = zip(folders, logs, strict=True)
    losses = [loss_plot.read_losses(log, name=path.name) for path, log in runs]
    for path in plots.save_figure(
        loss_plot.draw_losses(losses), _OUT.value, formats
    ):
      print(f"figure: {path}")
  summaries = [
      summary_lib.read_summary(folder / "summary.json") for folder in folders
  ]
  for folder, log, summary in zip(folders, logs, summaries, strict=True):
    recoveries = (line for line in log if line.get("event") == "recovery")
    print(
        f"{folder.name}: steps={summary.steps} "
        f"samples_seen={summary.samples_seen} "
        f"stages_lost={sum(len(line['victims']) for line in recoveries)} "
        f"state_sha256={summary.state_sha256}"
    )
  differing = [
      name
      for name in ("steps", "samples_seen", "state_sha256", "final_loss")
      if getattr(summaries[0], name) != getattr(summaries[1], name)
  ]
  if differing:
    print(f"different: {', '.join(differing)}", file=sys.stderr)
    sys.exit(1)
  print("identical")


if __name__ == "__main__":
  cli.run(main, takes_arguments=True)
