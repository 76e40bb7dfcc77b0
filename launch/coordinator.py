"""The coordination service of JAX in a process of its own.

python -m launch.coordinator --port=8476 --etcd=127.0.0.1:2379

It runs beside etcd, on the machine that must be up anyway; see
`bamboo_jax.runtime.wire.coordination`. With --etcd it starts and ends services
as nodes need them, see `bamboo_jax.local_cluster.coordinator`; if it has died,
starting it again is enough. Without, there is one service. Prints a line for
each.
"""

import signal

from absl import flags

from bamboo_jax.cluster import eras as eras_lib
from launch import cli
from launch import identity_flags

_PORT = flags.DEFINE_integer(
    "port", None, "Where to listen; 0 for any port.", required=True
)
_HOST = flags.DEFINE_string(
    "host", "127.0.0.1", "Where to listen, and how workers reach it."
)
_SLOTS = flags.DEFINE_integer(
    "slots", 64, "Slots of a service: one more than nodes that it can take."
)
_ETCD = flags.DEFINE_string("etcd", None, "Endpoints, to serve eras.")
flags.adopt_module_key_flags(identity_flags)


def main() -> None:
  """Serves until it is ended."""
  identity = identity_flags.make("coordinator", "", host=_HOST.value)
  if _SLOTS.value < 2:
    raise ValueError(f"--slots must be at least 2, got {_SLOTS.value}.")
  # A service that ends says goodbye, which workers do not survive; one whose
  # process is killed does not.
  signal.signal(signal.SIGTERM, signal.SIG_DFL)
  from bamboo_jax.local_cluster import coordinator  # Imports JAX.

  services = coordinator.Services(_HOST.value, _PORT.value, identity)
  if _ETCD.value is None:
    address = services.find_address(0)
    services.start(eras_lib.Era(0, address, _SLOTS.value))
    signal.pause()
  coordinator.Coordinator(
      identity_flags.connect(_ETCD.value, identity),
      services,
      run=identity_flags.RUN.value,
      num_slots=_SLOTS.value,
  ).serve()


if __name__ == "__main__":
  cli.run(main)
