r"""Shows the progress of a cluster.

bamboo status --etcd=127.0.0.1:2379 --secret=FILE

Lists nodes, layout, failures that would be survived now, and times of the last
recoveries. Asks the store alone, so it disturbs no worker.
"""

import time

from absl import flags

from bamboo_jax.cluster.store import registry as registry_lib
from bamboo_jax.launch import cli
from bamboo_jax.launch import identity_flags
from bamboo_jax.report import status

_ETCD = flags.DEFINE_string(
    "etcd",
    None,
    "host:port, or several with commas between; https:// in front for TLS.",
    required=True,
)
flags.adopt_module_key_flags(identity_flags)


def main() -> None:
  """Reads from the store, and prints."""
  name = identity_flags.RUN.value
  identity = identity_flags.make("operator", "", host="127.0.0.1")
  etcd = identity_flags.connect(_ETCD.value, identity)
  run = status.read(registry_lib.Registry(etcd, name), name)
  print(status.render(run, now_secs=time.time()))


if __name__ == "__main__":
  cli.run(main)
