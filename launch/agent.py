r"""The agent of one node: starts its worker and stays in touch with the others.

bamboo agent --config=quickstart --workdir=/shared/run \
  --name=n0 --zone=a --host=10.0.0.7

One for each node, with the same workdir: a folder that all share, or the URL of a
bucket. `bamboo cluster` starts all of them on one machine. The first SIGTERM
announces that the node will be preempted: other nodes take over its stages, and it
ends with status 143. A second one, or SIGINT, ends it at once.
"""

import dataclasses
import os
import sys

from bamboo_jax.base import logs
from bamboo_jax.cli import flagset
from bamboo_jax.cli.flagset import flag, part
from bamboo_jax.cluster import (
    children,
    copies,
    mirror,
    notices as notices_lib,
    records as records_lib,
)
from bamboo_jax.launch import cli, node as node_flags
from bamboo_jax.local_cluster import narrator as narrator_lib, node
from bamboo_jax.metrics import progress as progress_lib
from bamboo_jax.net import identity as identity_lib
from bamboo_jax.recovery import placement


@dataclasses.dataclass(frozen=True)
class AgentFlags:
  """What the agent alone obeys."""

  zone: str = flag("", "Zone that the node is in, as a, or with its region, as us/a.")
  nodes: int | None = flag(None, "Number of nodes to begin with.", least=1)
  notice: str = flag(
      "none", "Cloud that announces preemptions.", choices=("none", *notices_lib.CLOUDS)
  )
  notice_url: str | None = flag(None, "Metadata server in place of the cloud's, for tests.")
  progress: bool = flag(True, "Print who joins, steps, deaths and the end.")
  metrics_port: int | None = flag(
      None, "Serve metrics for Prometheus at this port.", least=1, most=65535
  )
  metrics_host: str = flag(
      "127.0.0.1", "Address where --metrics_port listens; all who can connect read metrics."
  )
  node: node_flags.NodeFlags = part(node_flags.NodeFlags)


def main(flags: AgentFlags) -> None:
  """Runs the agent until its worker has ended."""
  spare = copies.Spare() if copies.is_copy else None
  given = flags.node
  logs.use(given.name)
  placement.check_zone(flags.zone)
  identity_lib.check_host(given.host, secret=b"of the run")
  folder = mirror.take(given.workdir)
  identity = given.identity.make("agent", given.name, host=given.host, folder=folder)
  records = records_lib.Records(given.workdir, identity.entry_key)
  notices = None
  if flags.notice != "none":
    notices = notices_lib.Poller(flags.notice, url=flags.notice_url)
  options = node.make_options(
      given.config,
      workdir=given.workdir,
      num_nodes=flags.nodes,
      name=given.name,
      zone=flags.zone,
      host=given.host,
      command=[sys.executable, "-m", "bamboo_jax.launch.worker", *flagset.to_argv(given)],
      notices=notices,
  )
  with progress_lib.ProgressLine(num_steps=given.config.num_steps) as progress:
    narrator = None
    if flags.progress:
      narrator = narrator_lib.Narrator(folder, progress, place=given.workdir)
    is_complete = node.run(
        *(records, options, identity, spare),
        metrics_port=flags.metrics_port,
        metrics_host=flags.metrics_host,
        narrator=narrator,
    )
  os._exit(0 if is_complete else children.LEFT)


if __name__ == "__main__":
  cli.run(main, is_node=True)
