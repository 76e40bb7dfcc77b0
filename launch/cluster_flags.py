"""Flags of commands that run a cluster on this machine."""

import dataclasses

from absl import flags

from bamboo_jax.launch import config_flag, figure_flags, page_flags, shared_flags
from bamboo_jax.traces import readers, replay as replay_lib

CONFIG = config_flag.define("default", "What to train.")
WORKDIR = shared_flags.define_workdir()
NODES = flags.DEFINE_integer(
    "nodes",
    None,
    "Number of nodes; those the config does not need are spares. With --trace, "
    "how many may be alive at once: the trace is scaled to that.",
    lower_bound=1,
)
ZONES = flags.DEFINE_list("zones", ["a"], "Zones, given out in turn.")
ETCD = flags.DEFINE_string("etcd", None, "Host and port of etcd; without it one is started.")
RUN = flags.DEFINE_string("run", "run", "Name of the run in etcd.")
FAULTS = flags.DEFINE_string(
    "faults", None, "CSV file of what happens to nodes: step,node,at,kind."
)
RANDOM_KILLS = flags.DEFINE_integer(
    "random_kills", None, "Number of random workers to kill at random times, and replace."
)
KINDS = flags.DEFINE_list("kinds", ["kill"], "Kinds of fault to draw from for --random_kills.")
SEED = flags.DEFINE_integer("seed", 0, "Decides on --random_kills.")
TRACE = flags.DEFINE_list(
    "trace",
    [],
    "File of when nodes come and go: milliseconds,add|remove|notice,node. "
    "Several files are zones.",
)
TIME_SCALE = flags.DEFINE_float(
    "time_scale", 1.0, "How many times as fast as recorded the trace is played."
)
FRACTION = shared_flags.define_device_memory_fraction()
METRICS_PORT = flags.DEFINE_integer(
    "metrics_port",
    None,
    "Serve metrics for Prometheus: node n0 at this port, n1 at the next one, " "and so on.",
    lower_bound=1,
    upper_bound=65535,
)
find_page_port = page_flags.define()
FIGURE_FORMAT = figure_flags.define()
PROGRAM_CACHE = shared_flags.define_program_cache()


def read_replay() -> replay_lib.Replay:
  """Returns the replay of the trace that the flags describe.

  It has no events if nodes are not preemptible.
  """
  replay = replay_lib.plan_replay(
      readers.read_traces(TRACE.value), time_scale=TIME_SCALE.value, num_nodes=NODES.value
  )
  if CONFIG.value.recovery.is_preemptible:
    return replay
  return dataclasses.replace(replay, events=())
