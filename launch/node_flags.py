"""Flags of an agent and of its worker.

The agent passes those of `SHARED` on as they are.
"""

from absl import flags

from bamboo_jax.launch import config_flag, identity_flags, shared_flags

NAME = flags.DEFINE_string("name", None, "Of the node.", required=True)
CONFIG = config_flag.define("default", "What to train.")
WORKDIR = shared_flags.define_workdir()
HOST = flags.DEFINE_string("host", "127.0.0.1", "Where to listen.")
FAULTS = flags.DEFINE_string("faults", None, "CSV file of faults.")
DIRECTOR = flags.DEFINE_string("director", None, "Socket of the injector.")
DEVICE_MEMORY_FRACTION = shared_flags.define_device_memory_fraction()
PROGRAM_CACHE = shared_flags.define_program_cache(
    "programs in --workdir, so that all machines have the same"
)
flags.adopt_module_key_flags(identity_flags)

SHARED = (
    *("config", "host", *identity_flags.NAMES, "faults"),
    *("director", "device_memory_fraction", "program_cache"),
)
