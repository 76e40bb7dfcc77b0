r"""The agent of one node: starts its worker and stays in touch with the others.

bamboo agent --config=quickstart --workdir=/shared/run \
  --name=n0 --zone=a --host=10.0.0.7

One for each node, after `bamboo store` with the same workdir; `bamboo cluster`
starts all of them on one machine. The first SIGTERM announces that the node
will be preempted: other nodes take over its stages, and it ends. A second one,
or SIGINT, ends it at once.
"""

import os
import sys

from absl import flags

from bamboo_jax.base import logs
from bamboo_jax.cluster import copies, notices as notices_lib
from bamboo_jax.launch import cli, identity_flags, node_flags as given
from bamboo_jax.local_cluster import narrator as narrator_lib, node
from bamboo_jax.metrics import progress as progress_lib

flags.adopt_module_key_flags(given)
_ETCD = flags.DEFINE_string(
    "etcd",
    None,
    "host:port, or several with commas between; https:// in front for TLS. By "
    "default that of `bamboo store` with the same --workdir.",
)
_ZONE = flags.DEFINE_string("zone", "", "Zone that the node is in.")
_NODES = flags.DEFINE_integer("nodes", None, "Number of nodes to begin with.")
_CLOUDS = ("none", *notices_lib.CLOUDS)
_NOTICE = flags.DEFINE_enum("notice", "none", _CLOUDS, "Cloud that announces preemptions.")
_NOTICE_URL = flags.DEFINE_string(
    "notice_url", None, "Metadata server in place of the cloud's, for tests."
)
_PROGRESS = flags.DEFINE_bool("progress", True, "Print who joins, steps, deaths and the end.")
_METRICS_PORT = flags.DEFINE_integer(
    "metrics_port", None, "Serve metrics for Prometheus at this port."
)
_METRICS_HOST = flags.DEFINE_string(
    "metrics_host",
    "127.0.0.1",
    "Address where --metrics_port listens; all who can connect read metrics.",
)


def main() -> None:
  """Runs the agent until its worker has ended."""
  spare = copies.Spare() if copies.is_copy else None
  name, host = given.NAME.value, given.HOST.value
  config = given.CONFIG.value
  logs.use(name)
  endpoints, run, secret = identity_flags.find_run(_ETCD.value, given.WORKDIR.value)
  identity = identity_flags.make("agent", name, host=host, run=run, secret_file=secret)
  etcd = identity_flags.connect(endpoints, identity)
  # Name and workdir come first, where `ps` shows them.
  arguments = [f"--name={name}", f"--workdir={given.WORKDIR.value}"]
  arguments += cli.find_arguments(given.SHARED, sys.argv[1:])
  arguments += [f"--run={run}"] + [f"--secret={secret}"] * bool(secret)
  notices = None
  if _NOTICE.value != "none":
    notices = notices_lib.Poller(_NOTICE.value, url=_NOTICE_URL.value)
  options = node.make_options(
      config,
      workdir=given.WORKDIR.value,
      num_nodes=_NODES.value,
      name=name,
      run=run,
      zone=_ZONE.value,
      host=host,
      command=[sys.executable, "-m", "bamboo_jax.launch.worker", *arguments],
      notices=notices,
  )
  with progress_lib.ProgressLine(num_steps=config.num_steps) as progress:
    narrator = None
    # `bamboo cluster` shows it itself.
    if _PROGRESS.value and given.DIRECTOR.value is None:
      narrator = narrator_lib.Narrator(given.WORKDIR.value, progress)
    node.run(
        *(etcd, options, identity, spare),
        metrics_port=_METRICS_PORT.value,
        metrics_host=_METRICS_HOST.value,
        narrator=narrator,
    )
  os._exit(0)


if __name__ == "__main__":
  cli.run(main, is_node=True)
