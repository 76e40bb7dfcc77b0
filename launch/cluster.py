r"""Trains on a cluster on this machine: an agent and a worker for each node.

python -m launch.cluster \
  --config=configs/quickstart.py \
  --workdir=runs/cluster \
  --nodes=8 \
  --zones=a,b,c \
  --faults=configs/quickstart_faults.csv

With `--random_kills=50` in place of `--faults`, as many workers are killed, and
each is replaced. With `--trace=FILE --time_scale=60` nodes come and go as
in a trace, sixty times as fast. Starts an etcd and the coordination service of
JAX too, and ends all of them. The same command goes on from the last
checkpoint.
"""

from collections.abc import Sequence
import pathlib
import sys
from typing import Any

from absl import flags

from bamboo_jax import base
from bamboo_jax.cluster import detection
from bamboo_jax.faults import cluster_file
from bamboo_jax.faults import random_kills
from bamboo_jax.local_cluster import machine
from bamboo_jax.local_cluster import run as cluster_run
from bamboo_jax.metrics import progress as progress_lib
from bamboo_jax.traces import readers
from bamboo_jax.traces import replay as trace_replay
from launch import cli
from launch import config_flag

_CONFIG = config_flag.define("configs/default.py", "What to train.")
_WORKDIR = flags.DEFINE_string(
    "workdir", None, "Where checkpoints and metrics go.", required=True
)
_NODES = flags.DEFINE_integer(
    "nodes",
    None,
    "Number of nodes; those the config does not need are spares. With --trace, "
    "how many may be alive at once: the trace is scaled to that.",
    lower_bound=1,
)
# What agents get as it was given.
_SHARED = ("config", "workdir", "faults", "run")
_ZONES = flags.DEFINE_list("zones", ["a"], "Zones, given out in turn.")
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
_SEED = flags.DEFINE_integer("seed", 0, "Decides on --random_kills.")
_TRACE = flags.DEFINE_list(
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


def main(argv: Sequence[str]) -> None:
  """Checks what is asked for, runs it, and reports."""
  cli.check_no_arguments(argv)
  config = _CONFIG.value
  if config.pipeline.executor != "rows":
    raise ValueError(
        "config.pipeline.executor must be 'rows' in a cluster, got "
        f"{config.pipeline.executor!r}."
    )
  detection.Limits(**config.cluster)  # Checks them.
  if not all(_ZONES.value) or not _ZONES.value:
    raise ValueError(
        f"--zones must be names such as a,b,c, got {','.join(_ZONES.value)!r}."
    )
  given = [f for f in (_FAULTS, _RANDOM_KILLS, _TRACE) if f.value]
  if len(given) > 1:
    names = " and ".join(f"--{f.name}" for f in given)
    raise ValueError(f"Give one of {names}, not both.")
  faults, replay = _read_faults(config), _read_trace()
  zones = _first_zones(config, replay)
  survival = machine.place_nodes(config, dict(enumerate(zones)))[1]
  workdir = pathlib.Path(_WORKDIR.value)
  arguments = cli.find_arguments(_SHARED, sys.argv[1:])
  if _RANDOM_KILLS.value is not None:  # Workers read them, too.
    workdir.mkdir(parents=True, exist_ok=True)
    path = workdir / "random_kills.csv"
    path.write_text(random_kills.render_csv(faults))
    arguments.append(f"--faults={path}")
  with base.lock_folder(workdir):
    with progress_lib.Progress(num_steps=config.num_steps) as progress:
      progress.show_text(survival.render())
      run = cluster_run.ClusterRun(
          workdir,
          arguments,
          first_zones=zones,
          zones=_ZONES.value,
          slots=_SLOTS.value,
          etcd=_ETCD.value,
          run=_RUN.value,
          progress=progress,
          faults=faults,
          replay=replay,
      )
      run.run()
    run.report()


def _read_faults(config: Any) -> tuple[cluster_file.ClusterFault, ...]:
  """Returns the faults of the file, checked."""
  sizes = {
      "num_steps": config.num_steps,
      "num_pipelines": config.pipeline.num_pipelines,
      "num_stages": config.pipeline.num_stages,
  }
  if _RANDOM_KILLS.value is not None:
    return random_kills.make_random_kills(
        _RANDOM_KILLS.value, seed=_SEED.value, **sizes
    )
  if not _FAULTS.value:
    return ()
  faults = cluster_file.parse_cluster_faults(
      pathlib.Path(_FAULTS.value).read_bytes().decode(errors="replace"),
      source=_FAULTS.value,
  )
  cluster_file.check_cluster_faults(faults, source=_FAULTS.value, **sizes)
  return faults


def _read_trace() -> trace_replay.Replay | None:
  """Returns the trace that is to be replayed, if any."""
  if not _TRACE.value:
    if _TIME_SCALE.present:
      raise ValueError("--time_scale needs a --trace.")
    return None
  return trace_replay.plan_replay(
      readers.read_traces(_TRACE.value),
      time_scale=_TIME_SCALE.value,
      num_nodes=_NODES.value,
  )


def _first_zones(config: Any, replay: trace_replay.Replay | None) -> list[str]:
  """Returns the zone of each node to begin with."""
  pipeline = config.pipeline
  needed = pipeline.num_pipelines * pipeline.num_stages
  if replay is None:
    named = [""] * (_NODES.value or needed + config.redundancy.spares)
    given = f"--nodes={len(named)}"
  else:
    named = list(map(trace_replay.zone_of, replay.first))
    given = f"a trace that starts with {len(named)}"
  if len(named) < needed:
    raise ValueError(
        f"{pipeline.num_pipelines} pipelines of {pipeline.num_stages} stages "
        f"need at least {needed} nodes, got {given}."
    )
  return [
      zone or _ZONES.value[i % len(_ZONES.value)]
      for i, zone in enumerate(named)
  ]


if __name__ == "__main__":
  cli.run(main, if_interrupted="all processes have ended")
