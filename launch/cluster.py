r"""Trains on a cluster on this machine: an agent and a worker for each node.

bamboo cluster --config=quickstart --workdir=runs/cluster --page
bamboo cluster --config=quickstart --workdir=runs/cluster \
  --nodes=8 --zones=a,b,c --faults=configs/quickstart_faults.csv

With `--page` it prints the address of a page that shows the run, with buttons
that kill nodes. With `--random_kills=50` instead of `--faults`, 50 workers are
killed, and each is replaced. With `--trace=FILE --time_scale=60` nodes join and
die as in a trace, sixty times as fast. Starts an etcd too, and ends all
processes. The same command resumes from the last checkpoint. On Ctrl-C, SIGTERM
or SIGUSR1 the step is finished and saved first; a second Ctrl-C or SIGTERM ends
all at once.
"""

import functools
import os
import pathlib
import sys

from absl import flags

from bamboo_jax.launch import (
    cli,
    cluster_checks,
    cluster_flags as given,
    figure_flags,
    shared_flags,
)
from bamboo_jax.local_cluster import cluster_run, setup as setup_lib
from bamboo_jax.metrics import progress
from bamboo_jax.runtime import accelerator
from bamboo_jax.train.setup import sizes

flags.adopt_module_key_flags(given)
# What agents get as it was given.
_SHARED = ("config", "workdir", "faults", "run", "device_memory_fraction")


def main() -> None:
  """Checks the flags, runs the cluster, and reports."""
  config, zones = given.CONFIG.value, given.ZONES.value
  change = figure_flags.find_change(given.FIGURE_FORMAT, config)
  cluster_checks.check_together()
  replay = given.read_replay() if given.TRACE.value else None
  with progress.waiting("importing JAX"):
    first_zones = setup_lib.find_first_zones(config, given.NODES.value, zones, replay)
  gpus, fraction = accelerator.find_gpus(os.environ), given.FRACTION.value
  accelerator.check_fraction(fraction, num_workers=len(first_zones), gpus=gpus)
  folder = shared_flags.find_program_cache(given.PROGRAM_CACHE.value)
  setup = setup_lib.Setup(
      workdir=pathlib.Path(given.WORKDIR.value),
      arguments=[
          *cli.find_arguments(_SHARED, sys.argv[1:]),
          *(f"--config.{name}={value}" for name, value in change.items()),
          f"--program_cache={folder}",
      ],
      first_zones=first_zones,
      zones=zones,
      etcd=given.ETCD.value,
      run=given.RUN.value,
      faults=sizes.read_faults(config, given.FAULTS.value),
      replay=replay,
      gpus=gpus,
      page_port=given.find_page_port(),
      metrics_port=given.METRICS_PORT.value,
  )
  if given.RANDOM_KILLS.value is not None:
    setup = setup_lib.with_random_kills(
        setup, config, given.RANDOM_KILLS.value, seed=given.SEED.value, kinds=given.KINDS.value
    )
  cluster_run.run(setup, config, hearing=cli.hearing)


if __name__ == "__main__":
  explain = functools.partial(shared_flags.explain_resume, given.WORKDIR)
  cli.run(main, if_interrupted=lambda: f"all processes have ended; {explain()}")
