r"""Trains a model; every node is a virtual device of this process.

bamboo train \
  --config=quickstart \
  --config.num_steps=100 \
  --workdir=runs/quickstart

Running the same command again resumes from the last checkpoint. On SIGTERM,
Ctrl-C or SIGUSR1 it finishes the step, saves it, and ends; a second SIGTERM or
Ctrl-C ends it at once.
"""

import dataclasses
import os
import sys

from bamboo_jax.cli.flagset import flag
from bamboo_jax.config import Config
from bamboo_jax.launch import cli
from bamboo_jax.metrics import progress, summary as summary_lib
from bamboo_jax.training.record import workdir as workdir_lib


@dataclasses.dataclass(frozen=True)
class TrainFlags:
  """A run in this process."""

  config: Config = cli.config("default", "What to train.")
  workdir: str = cli.workdir()
  stop_at: int | None = flag(
      None,
      "Return right after this many steps are committed, without waiting for a checkpoint in "
      "flight; the same command without it goes on.",
      least=1,
  )
  faults: str | None = flag(
      None,
      "CSV file of what happens to nodes on purpose: step,node,at,kind such as 3,0/1,5,kill or "
      "4,,,join; see `bamboo_jax/faults`.",
  )
  control: bool = flag(
      False,
      "Redo the last step without one share of its batch, and write the hash of that state to "
      "control.json: it must differ.",
  )
  program_cache: str | None = cli.program_cache()
  figure_format: tuple[str, ...] = cli.figure_format()


def main(flags: TrainFlags) -> None:
  """Trains; everything else is in the library."""
  with progress.waiting("importing JAX"):  # Flags are checked before.
    from bamboo_jax.runtime import program_store
    from bamboo_jax.training import run

  change = cli.find_format_change(flags.figure_format, flags.config)
  program_store.use(cli.find_program_cache(flags.program_cache))
  finished = run.train_and_evaluate(
      flags.config.changed(change),
      workdir=flags.workdir,
      stop_at=flags.stop_at,
      faults=flags.faults,
      hearing=cli.hearing,
      with_control=flags.control,
  )
  if not finished:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # A save in flight is not waited for.
  where = workdir_lib.Workdir.at(flags.workdir)
  print(summary_lib.read_summary(where.summary).render(flags.workdir))


if __name__ == "__main__":
  cli.run(main, if_interrupted=cli.explain_resume)
