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

import dataclasses
import os
import pathlib
import sys

from absl import flags

from bamboo_jax.faults import faults as faults_lib
from bamboo_jax.faults import random_kills
from bamboo_jax.local_cluster import run as cluster_run
from bamboo_jax.local_cluster import setup as setup_lib
from bamboo_jax.runtime import accelerator
from bamboo_jax.traces import readers
from bamboo_jax.traces import replay as replay_lib
from bamboo_jax.train.setup import sizes
from launch import cli
from launch import config_flag
from launch import shared_flags

CONFIG = config_flag.define("configs/default.py", "What to train.")
WORKDIR = shared_flags.define_workdir()
NODES = flags.DEFINE_integer(
    "nodes",
    None,
    "Number of nodes; those the config does not need are spares. With --trace, "
    "how many may be alive at once: the trace is scaled to that.",
    lower_bound=1,
)
ZONES = flags.DEFINE_list("zones", ["a"], "Zones, given out in turn.")
_ETCD = flags.DEFINE_string(
    "etcd", None, "Host and port of etcd; without it one is started."
)
_RUN = flags.DEFINE_string("run", "run", "Name of the run in etcd.")
_FAULTS = flags.DEFINE_string(
    "faults", None, "CSV file of what happens to nodes: step,node,at,kind."
)
_RANDOM_KILLS = flags.DEFINE_integer(
    "random_kills",
    None,
    "Kill so many random workers, at random times, and replace each.",
)
_KINDS = flags.DEFINE_list(
    "kinds", ["kill"], "Of faults, drawn for each of --random_kills."
)
_SEED = flags.DEFINE_integer("seed", 0, "Decides on --random_kills.")
TRACE = flags.DEFINE_list(
    "trace",
    [],
    "File of when nodes come and go: milliseconds,add|remove|notice,node. "
    "Several files are zones.",
)
_TIME_SCALE = flags.DEFINE_float(
    "time_scale", 1.0, "How many times as fast as recorded the trace is played."
)
_SLOTS = flags.DEFINE_integer(
    "slots", 64, "Slots of a coordination service, see `launch.coordinator`."
)
_DEVICE_MEMORY_FRACTION = shared_flags.define_device_memory_fraction()
shared_flags.define_program_cache()
# What agents get as it was given.
_SHARED = (
    *("config", "workdir", "faults", "run"),
    *("device_memory_fraction", "program_cache"),
)


def main() -> None:
  """Checks what is asked for, runs it, and reports."""
  config = CONFIG.value
  setup_lib.check(config, ZONES.value)
  cli.check_one_of(_FAULTS, _RANDOM_KILLS, TRACE)
  replay, faults = None, ()
  arguments = cli.find_arguments(_SHARED, sys.argv[1:])
  workdir = pathlib.Path(WORKDIR.value)
  if TRACE.value:
    replay = read_replay()
  elif _TIME_SCALE.present:
    raise ValueError("--time_scale needs a --trace.")
  if _FAULTS.value and config.recovery.is_preemptible:
    limits = sizes.fault_limits(config)
    faults = faults_lib.read_faults(_FAULTS.value, **limits)
  zones = setup_lib.find_first_zones(config, NODES.value, ZONES.value, replay)
  gpus = accelerator.find_gpus(os.environ)
  accelerator.check_fraction(
      _DEVICE_MEMORY_FRACTION.value, num_workers=len(zones), gpus=gpus
  )
  if _RANDOM_KILLS.value is not None:
    faults = random_kills.make_random_kills(
        _RANDOM_KILLS.value,
        seed=_SEED.value,
        num_steps=config.num_steps,
        num_pipelines=config.pipeline.num_pipelines,
        num_stages=config.pipeline.num_stages,
        kinds=_KINDS.value,
        zones=ZONES.value,
    )
    path = workdir / "random_kills.csv"  # Where workers read them.
    workdir.mkdir(parents=True, exist_ok=True)
    path.write_text(faults_lib.render(faults))
    arguments.append(f"--faults={path}")
  setup = setup_lib.Setup(
      workdir=workdir,
      arguments=arguments,
      first_zones=zones,
      zones=ZONES.value,
      slots=_SLOTS.value,
      etcd=_ETCD.value,
      run=_RUN.value,
      faults=faults,
      replay=replay,
      gpus=gpus,
  )
  cluster_run.run(setup, config)


def read_replay() -> replay_lib.Replay:
  """Returns the trace, as the flags say to play it.

  Nothing happens in it if nodes are not preemptible.
  """
  replay = replay_lib.plan_replay(
      readers.read_traces(TRACE.value),
      time_scale=_TIME_SCALE.value,
      num_nodes=NODES.value,
  )
  if CONFIG.value.recovery.is_preemptible:
    return replay
  return dataclasses.replace(replay, events=())


if __name__ == "__main__":
  cli.run(main, if_interrupted="all processes have ended")
