r"""Kills the workers of nodes without notice, as a crash would.

bamboo kill --workdir=runs/cluster n2
bamboo kill --workdir=runs/cluster n2 n5

They get SIGKILL, and the others go on without them. `bamboo status` names the
nodes. On several machines, run it on that of the node.
"""

from collections.abc import Sequence
import os
import pathlib
import signal

from absl import flags

from bamboo_jax.launch import cli, observer_flags as given
from bamboo_jax.local_cluster import inquiry

flags.adopt_module_key_flags(given)


def main(names: Sequence[str]) -> None:
  """Finds all of the workers, then kills them."""
  if not names or given.WORKDIR.value is None:
    raise ValueError(
        "Name the --workdir of a run and its nodes: bamboo kill " "--workdir=runs/cluster n2"
    )
  workdir = pathlib.Path(given.WORKDIR.value)
  workers = inquiry.find_workers(workdir / "logs")
  if missing := [name for name in names if name not in workers]:
    with given.explaining():
      members = given.connect().registry.members()
    hosts = {member.name: member.host for member in members}
    raise ValueError(inquiry.explain_missing(missing[0], workers, hosts))
  for name in dict.fromkeys(names):
    os.kill(workers[name], signal.SIGKILL)
    print(f"{name}: worker {workers[name]} was killed")


if __name__ == "__main__":
  cli.run(main, takes_arguments=True)
