"""The flags of `launch.agent`."""

from absl import flags

from bamboo_jax.cluster import notices as notices_lib
from launch import config_flag
from launch import program_cache

CONFIG = config_flag.define("configs/default.py", "What to train.")
WORKDIR = flags.DEFINE_string(
    "workdir", None, "Where checkpoints and metrics go.", required=True
)
ETCD = flags.DEFINE_string(
    "etcd", None, "host:port, or several with commas between.", required=True
)
SERVICE = flags.DEFINE_string(
    "service",
    None,
    "Host and port of a `launch.coordinator` without --etcd; one with it is "
    "found in etcd.",
)
SLOTS = flags.DEFINE_integer("slots", 64, "Number of slots of --service.")
NAME = flags.DEFINE_string("name", None, "Of the node.", required=True)
ZONE = flags.DEFINE_string("zone", "", "Zone that the node is in.")
HOST = flags.DEFINE_string("host", "127.0.0.1", "Where to listen.")
NODES = flags.DEFINE_integer("nodes", None, "Number of nodes to begin with.")
NOTICE = flags.DEFINE_enum(
    "notice",
    "none",
    ("none", *notices_lib.CLOUDS),
    "Cloud that gives notice before it preempts the node.",
)
NOTICE_URL = flags.DEFINE_string(
    "notice_url", None, "Metadata server in place of the cloud's, for tests."
)
FAULTS = flags.DEFINE_string("faults", None, "CSV file of faults.")
DIRECTOR = flags.DEFINE_integer("director", None, "Port of who injects them.")
DEVICE_MEMORY_FRACTION = flags.DEFINE_float(
    "device_memory_fraction",
    None,
    "Part of the memory of a GPU that each worker takes; several may share it.",
)
PROGRAM_CACHE = program_cache.define()
