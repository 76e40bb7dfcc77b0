r"""Shows the progress of a cluster.

python -m launch.status --etcd=127.0.0.1:2379

Lists nodes, layout, failures that would be survived now, and times of the last
recoveries. Asks the store alone, so it disturbs no worker.
"""

from collections.abc import Sequence
import time

from absl import flags

from bamboo_jax.cluster.store import etcd as etcd_lib
from bamboo_jax.cluster.store import registry as registry_lib
from bamboo_jax.report import status
from launch import cli

_ETCD = flags.DEFINE_string(
    "etcd", None, "host:port, or several with commas between.", required=True
)
_RUN = flags.DEFINE_string("run", "run", "Name of the run in etcd.")


def main(argv: Sequence[str]) -> None:
  """Reads from the store, and prints."""
  cli.check_no_arguments(argv)
  registry = registry_lib.Registry(etcd_lib.Etcd(_ETCD.value), _RUN.value)
  run = status.read(registry, _RUN.value)
  print(status.render(run, now_secs=time.time()))


if __name__ == "__main__":
  cli.run(main)
