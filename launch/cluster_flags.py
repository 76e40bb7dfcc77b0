"""The flags of `launch.cluster`."""

from absl import flags

from launch import config_flag
from launch import program_cache

CONFIG = config_flag.define("configs/default.py", "What to train.")
WORKDIR = flags.DEFINE_string(
    "workdir", None, "Where checkpoints and metrics go.", required=True
)
NODES = flags.DEFINE_integer(
    "nodes",
    None,
    "Number of nodes; those the config does not need are spares. With --trace, "
    "how many may be alive at once: the trace is scaled to that.",
    lower_bound=1,
)
ZONES = flags.DEFINE_list("zones", ["a"], "Zones, given out in turn.")
ETCD = flags.DEFINE_string(
    "etcd", None, "Host and port of etcd; without it one is started."
)
RUN = flags.DEFINE_string("run", "run", "Name of the run in etcd.")
FAULTS = flags.DEFINE_string(
    "faults", None, "CSV file of what happens to nodes: step,node,at,kind."
)
RANDOM_KILLS = flags.DEFINE_integer(
    "random_kills",
    None,
    "Kill so many random workers, at random times, and replace each.",
)
KINDS = flags.DEFINE_list(
    "kinds", ["kill"], "Of faults, drawn for each of --random_kills."
)
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
SLOTS = flags.DEFINE_integer(
    "slots", 64, "Slots of a coordination service, see `launch.coordinator`."
)
DEVICE_MEMORY_FRACTION = flags.DEFINE_float(
    "device_memory_fraction",
    None,
    "Part of the memory of a GPU that each worker takes; several may share it.",
)
PROGRAM_CACHE = program_cache.define()
