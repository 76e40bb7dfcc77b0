r"""Trains on a cluster on this machine: an agent and a worker for each node.

python -m launch.cluster \
  --config=configs/quickstart.py \
  --workdir=runs/cluster \
  --nodes=8 \
  --zones=a,b,c \
  --faults=configs/quickstart_faults.csv

With `--random_kills=50` in place of `--faults`, as many workers are killed, and
each is replaced. With `--trace=FILE --time_scale=60` nodes come and go as in a
trace, sixty times as fast. Starts an etcd and the coordination service of JAX
too, and ends all of them. The same command goes on from the last checkpoint.
"""

from collections.abc import Sequence
import os
import pathlib
import sys

from absl import flags

from bamboo_jax.local_cluster import run as cluster_run
from bamboo_jax.local_cluster import setup as setup_lib
from bamboo_jax.runtime import accelerator
from launch import cli
from launch import cluster_flags as given

flags.adopt_module_key_flags(given)
# What agents get as it was given.
_SHARED = (
    "config",
    "workdir",
    "faults",
    "run",
    "device_memory_fraction",
    "program_cache",
)


def main(argv: Sequence[str]) -> None:
  """Checks what is asked for, runs it, and reports."""
  cli.check_no_arguments(argv)
  config = given.CONFIG.value
  setup_lib.check(config, given.ZONES.value)
  cli.check_one_of(given.FAULTS, given.RANDOM_KILLS, given.TRACE)
  replay, faults = None, ()
  arguments = cli.find_arguments(_SHARED, sys.argv[1:])
  workdir = pathlib.Path(given.WORKDIR.value)
  if given.TRACE.value:
    replay = setup_lib.read_replay(
        config,
        given.TRACE.value,
        time_scale=given.TIME_SCALE.value,
        num_nodes=given.NODES.value,
    )
  elif given.TIME_SCALE.present:
    raise ValueError("--time_scale needs a --trace.")
  if given.FAULTS.value:
    faults = setup_lib.read_faults(config, given.FAULTS.value)
  zones = setup_lib.find_first_zones(
      config,
      num_nodes=given.NODES.value,
      zones=given.ZONES.value,
      replay=replay,
  )
  gpus = accelerator.find_gpus(os.environ)
  accelerator.check_fraction(
      given.DEVICE_MEMORY_FRACTION.value, num_workers=len(zones), gpus=gpus
  )
  if given.RANDOM_KILLS.value is not None:
    path = workdir / "random_kills.csv"
    faults = setup_lib.write_random_kills(
        config,
        path,
        count=given.RANDOM_KILLS.value,
        seed=given.SEED.value,
        kinds=given.KINDS.value,
        zones=given.ZONES.value,
    )
    arguments.append(f"--faults={path}")
  setup = setup_lib.Setup(
      workdir=workdir,
      arguments=arguments,
      first_zones=zones,
      zones=given.ZONES.value,
      slots=given.SLOTS.value,
      etcd=given.ETCD.value,
      run=given.RUN.value,
      faults=faults,
      replay=replay,
      gpus=gpus,
  )
  cluster_run.run(setup, config)


if __name__ == "__main__":
  cli.run(main, if_interrupted="all processes have ended")
