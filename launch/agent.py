r"""The agent of one node: starts its worker and stays in touch with the others.

python -m launch.agent --config=configs/quickstart.py --workdir=runs/cluster \
  --etcd=127.0.0.1:2379 --name=n0 --zone=a

One for each node; `launch.cluster` starts all of them on one machine. The first
SIGTERM announces that the node will be preempted: others take over what it
does, and it ends. A second one, or SIGINT, ends it at once.
"""

from collections.abc import Sequence
import os
import sys

from absl import flags

from bamboo_jax.cluster import notices as notices_lib
from bamboo_jax.cluster.sessions import eras as eras_lib
from bamboo_jax.cluster.store import etcd as etcd_lib
from bamboo_jax.local_cluster import node
from launch import agent_flags as given
from launch import cli
from launch import identity_flags

flags.adopt_module_key_flags(given)
flags.adopt_module_key_flags(identity_flags)
# What the worker gets as it was given.
_SHARED = (
    "config",
    "workdir",
    "host",
    *identity_flags.NAMES,
    "faults",
    "director",
    "device_memory_fraction",
    "program_cache",
)


def main(argv: Sequence[str]) -> None:
  """Lives as long as its worker."""
  cli.check_no_arguments(argv)
  name, host = given.NAME.value, given.HOST.value
  identity = identity_flags.make("agent", name, host=host)
  etcd = identity_flags.connect(given.ETCD.value, identity)
  arguments = cli.find_arguments(_SHARED, sys.argv[1:])
  options = node.make_options(
      given.CONFIG.value,
      workdir=given.WORKDIR.value,
      num_nodes=given.NODES.value,
      name=name,
      run=identity_flags.RUN.value,
      zone=given.ZONE.value,
      host=host,
      max_nodes=given.SLOTS.value - 1 if given.SERVICE.value else None,
      command=[sys.executable, "-m", "launch.worker", *arguments],
      notices=_make_poller(),
      era=_fixed_era(),
  )
  node.run(etcd, options, identity)
  os._exit(0)


def _fixed_era() -> eras_lib.Era | None:
  if given.SERVICE.value is None:
    return None
  etcd_lib.parse_endpoint(given.SERVICE.value)
  return eras_lib.Era(0, given.SERVICE.value, given.SLOTS.value)


def _make_poller() -> notices_lib.Poller | None:
  if given.NOTICE.value == "none":
    return None
  return notices_lib.Poller(given.NOTICE.value, url=given.NOTICE_URL.value)


if __name__ == "__main__":
  cli.run(main)
