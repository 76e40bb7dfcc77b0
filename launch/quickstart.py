r"""Kills nodes in training, and shows that the result is the same to the bit.

bamboo quickstart
bamboo quickstart --workdir=runs/longer --config.num_steps=100

Trains a small GPT twice at the same time: without failures, and with five nodes
killed at awkward moments (`configs/quickstart_faults.csv`). Each step is a line
with both losses. Fails unless both runs end in the same state, to the bit, and
that of the last step without a share of its batch differs. The same command
again goes on where it was.
"""

import dataclasses
import json
import os
import pathlib
import shutil
import sys

from bamboo_jax import base
from bamboo_jax.benchmarks import story
from bamboo_jax.cli import config_flag, flagset
from bamboo_jax.config import Config
from bamboo_jax.launch import cli
from bamboo_jax.metrics import plots, progress, summary as summary_lib
from bamboo_jax.report import contents, figures
from bamboo_jax.training.record import workdir as workdir_lib
from bamboo_jax.training.setup import sizes

# Unless they are given: all deaths are in the first ten steps, and one figure
# shows both runs.
_OURS = {"num_steps": 20, "metrics.plots": False}


@dataclasses.dataclass(frozen=True)
class QuickstartFlags:
  """Two runs of one config."""

  config: Config = cli.config("quickstart", "What to train.")
  workdir: str = flagset.flag("runs/quickstart", "Where runs go.")
  faults: str = flagset.flag("configs/quickstart_faults.csv", "As for `bamboo train`.")
  program_cache: str | None = cli.program_cache()
  figure_format: tuple[str, ...] = cli.figure_format()


def main(flags: QuickstartFlags) -> None:
  """Trains twice, shows both, and compares."""
  folder = pathlib.Path(flags.workdir)
  ours = {k: v for k, v in _OURS.items() if k not in config_flag.given().values}
  config = flags.config.changed(ours)
  train = [sys.executable, "-m", "bamboo_jax.launch.train"]
  train += flagset.to_argv(flags, "config", "program_cache")
  train += [f"--config.{name}={value}" for name, value in ours.items()]
  commands = {"plain": [*train, "--control"], "failures": [*train, f"--faults={flags.faults}"]}
  shape = (config.pipeline.num_pipelines, config.pipeline.num_stages)
  sizes.read_faults(config, flags.faults)  # Before anything is written.
  with base.lock_folder(folder):
    print(story.render_title(commands, shape, spares=config.redundancy.spares))
    runs = story.run_all(folder, commands, num_steps=config.num_steps)
  folders = [folder / name for name in commands]
  try:
    with progress.waiting("figures are drawn"):
      recorded = [contents.read_run(one, {}) for one in folders]
      figure = figures.draw_losses(recorded, figures.plan_of(recorded[0]))
      paths = plots.save_figure(figure, folder / "losses.png", flags.figure_format)
    for path in paths:
      print(f"figure: {path}")
  except base.MissingExtraError as error:
    print(f"no figure: {error}")
  every_steps = config.checkpoint.every_steps
  for line in story.render_costs(*runs, every_steps=every_steps):
    print(line)
  if not contents.show_ends(folders):
    sys.exit(1)
  where = workdir_lib.Workdir.at(str(folders[0]))
  if where.control.exists():  # Not if there is only one share.
    # A lost share would have been noticed.
    control = json.loads(where.control.read_text())
    if line := story.render_control(control, summary_lib.read_summary(where.summary)):
      print(line)
  here = os.path.relpath(pathlib.Path(sys.executable).parent / "bamboo")
  bamboo = "bamboo" if shutil.which("bamboo") else here
  print("identical", *story.render_next(bamboo), sep="\n")


if __name__ == "__main__":
  cli.run(main, if_interrupted=lambda: "the same command goes on where it was")
