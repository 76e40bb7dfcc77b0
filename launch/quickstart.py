r"""Kills nodes in training, and shows that the result is the same to the bit.

bamboo quickstart
bamboo quickstart --workdir=runs/longer --config.num_steps=100

Trains a small GPT twice at the same time: without failures, and with five nodes
killed at awkward moments (`configs/quickstart_faults.csv`). Each step is a line
with both losses. Fails unless both runs end in the same state, to the bit, and
that of the last step without a share of its batch differs. The same command
again goes on where it was.
"""

import json
import os
import pathlib
import shutil
import sys

from absl import flags

from bamboo_jax import base
from bamboo_jax.benchmarks import story, twins
from bamboo_jax.launch import cli, config_flag, figure_flags, shared_flags
from bamboo_jax.metrics import progress, summary as summary_lib
from bamboo_jax.report import comparison
from bamboo_jax.train.record import workdir as workdir_lib
from bamboo_jax.train.setup import sizes

# Unless they are given: all deaths are in the first ten steps, and one figure
# shows both runs.
_OURS = {"num_steps": 20, "metrics.plots": False}
_CONFIG = config_flag.define("quickstart", "What to train.")
_WORKDIR = flags.DEFINE_string("workdir", "runs/quickstart", "Where runs go.")
_FAULTS = flags.DEFINE_string("faults", "configs/quickstart_faults.csv", "As for `bamboo train`.")
shared_flags.define_program_cache()
_FORMAT = figure_flags.define()


def main() -> None:
  """Trains twice, shows both, and compares."""
  config, folder = _CONFIG.value, pathlib.Path(_WORKDIR.value)
  given = cli.find_arguments(("config", "program_cache"), sys.argv[1:])
  train = [sys.executable, "-m", "bamboo_jax.launch.train"]
  train += ["--config=quickstart"] * (not _CONFIG.present)
  asked = [flag.partition("=")[0] for flag in given]
  ours = {k: v for k, v in _OURS.items() if f"--config.{k}" not in asked}
  config = config.changed(ours)
  given += [f"--config.{name}={value}" for name, value in ours.items()]
  commands = {
      "plain": [*train, *given, "--control"],
      "failures": [*train, *given, f"--faults={_FAULTS.value}"],
  }
  shape = (config.pipeline.num_pipelines, config.pipeline.num_stages)
  sizes.read_faults(config, _FAULTS.value)  # Before anything is written.
  with base.lock_folder(folder):
    print(story.render_title(commands, shape, spares=config.redundancy.spares))
    runs = twins.run_all(folder, commands, num_steps=config.num_steps)
  folders = [folder / name for name in commands]
  try:
    figure = (folder / "losses.png", _FORMAT.value)
    with progress.waiting("figures are drawn"):
      paths = comparison.save_figure(folders, *figure)
    for path in paths:
      print(f"figure: {path}")
  except base.MissingExtraError as error:
    print(f"no figure: {error}")
  every_steps = config.checkpoint.every_steps
  for line in story.render_costs(*runs, every_steps=every_steps):
    print(line)
  if not comparison.show_ends(folders, [run.lines for run in runs]):
    sys.exit(1)
  _show_control(folders[0])
  here = os.path.relpath(pathlib.Path(sys.executable).parent / "bamboo")
  bamboo = "bamboo" if shutil.which("bamboo") else here
  print("identical", *story.render_next(bamboo), sep="\n")


def _show_control(folder: pathlib.Path) -> None:
  """Shows that a lost share would have been noticed."""
  where = workdir_lib.Workdir.at(str(folder))
  if where.control.exists():  # Not if there is only one share.
    summary = summary_lib.read_summary(where.summary)
    control = json.loads(where.control.read_text())
    if line := story.render_control(control, summary):
      print(line)


if __name__ == "__main__":
  cli.run(main, if_interrupted=lambda: "the same command goes on where it was")
