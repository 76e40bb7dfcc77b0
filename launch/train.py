r"""Trains a model; every node is a virtual device of this process.

bamboo train \
  --config=quickstart \
  --config.num_steps=100 \
  --workdir=runs/quickstart

Running the same command again resumes from the last checkpoint. On SIGTERM,
Ctrl-C or SIGUSR1 it finishes the step, saves it, and ends; a second SIGTERM or
Ctrl-C ends it at once.
"""

import os
import sys

from absl import flags

from bamboo_jax.launch import cli, config_flag, figure_flags, shared_flags
from bamboo_jax.metrics import progress, summary as summary_lib
from bamboo_jax.train.record import workdir as workdir_lib

_CONFIG = config_flag.define("default", "What to train.")
_WORKDIR = shared_flags.define_workdir()
_STOP_AT = flags.DEFINE_integer(
    "stop_at",
    None,
    "Return right after this many steps are committed, without waiting for a "
    "checkpoint in flight; the same command without it goes on.",
    lower_bound=1,
)
_FAULTS = flags.DEFINE_string(
    "faults",
    None,
    "CSV file of what happens to nodes on purpose: step,node,at,kind such as "
    "3,0/1,5,kill or 4,,,join; see `bamboo_jax/faults`.",
)
_CONTROL = flags.DEFINE_bool(
    "control",
    False,
    "Redo the last step without one share of its batch, and write the hash of "
    "that state to control.json: it must differ.",
)
_PROGRAM_CACHE = shared_flags.define_program_cache()
_FORMAT = figure_flags.define()


def main() -> None:
  """Parses flags and trains; everything else is in the library."""
  with progress.waiting("importing JAX"):  # Flags are checked before.
    from bamboo_jax.train import run

  config = _CONFIG.value
  shared_flags.use_program_cache(_PROGRAM_CACHE.value)
  finished = run.train_and_evaluate(
      config.changed(figure_flags.find_change(_FORMAT, config)),
      workdir=_WORKDIR.value,
      stop_at=_STOP_AT.value,
      faults=_FAULTS.value,
      hearing=cli.hearing,
      with_control=_CONTROL.value,
  )
  if not finished:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # A save in flight is not waited for.
  where = workdir_lib.Workdir.at(_WORKDIR.value)
  print(summary_lib.read_summary(where.summary).render(_WORKDIR.value))


if __name__ == "__main__":
  cli.run(main, if_interrupted=lambda: shared_flags.explain_resume(_WORKDIR))
