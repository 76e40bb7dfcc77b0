r"""Kills the workers of nodes without notice, as a crash would.

bamboo kill --workdir=runs/cluster n2
bamboo kill --workdir=runs/cluster n2 n5

They get SIGKILL, and the others go on without them. `bamboo status` names the
nodes. On several machines, run it on that of the node.
"""

import dataclasses
import os
import signal

from bamboo_jax.cli import flagset
from bamboo_jax.cluster import mirror
from bamboo_jax.launch import cli, status as status_command
from bamboo_jax.local_cluster import inquiry
from bamboo_jax.report.live import feed


@dataclasses.dataclass(frozen=True)
class KillFlags:
  """The nodes to kill."""

  names: tuple[str, ...] = flagset.flag((), "Nodes whose workers to kill.", takes_rest=True)
  observed: status_command.ObserverFlags = flagset.part(status_command.ObserverFlags)


def main(flags: KillFlags) -> None:
  """Finds all of the workers, then kills them."""
  if not flags.names or flags.observed.workdir is None:
    raise ValueError(
        "Name the --workdir of a run and its nodes: bamboo kill --workdir=runs/cluster n2"
    )
  workers = inquiry.find_workers(mirror.local(flags.observed.workdir) / "logs")
  if missing := [name for name in flags.names if name not in workers]:
    run = feed.read_run(flags.observed.open())
    hosts = {member.name: member.host for member in run.registered}
    raise ValueError(inquiry.explain_missing(missing[0], workers, hosts))
  for name in dict.fromkeys(flags.names):
    try:
      os.kill(workers[name], signal.SIGKILL)
      print(f"{name}: worker {workers[name]} was killed")
    except ProcessLookupError:
      print(f"{name}: worker {workers[name]} had just died")


if __name__ == "__main__":
  cli.run(main)
