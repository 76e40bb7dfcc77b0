r"""Shows what the workers of this machine do: stacks, and what they wait for.

bamboo debug --workdir=runs/cluster

Asks each worker by signals, which disturb no step; they answer in their logs.
A worker that does not answer hangs outside of Python. On several machines, run
it on each.
"""

import pathlib

from bamboo_jax.launch import cli, shared_flags
from bamboo_jax.local_cluster import inquiry

_WORKDIR = shared_flags.define_workdir("Of a cluster that runs.")


def main() -> None:
  """Asks all workers, and prints their answers."""
  workdir = pathlib.Path(_WORKDIR.value)
  logs = workdir / "logs"
  workers = inquiry.find_workers(logs)
  if not workers:
    raise ValueError(f"No worker of {workdir} runs on this machine.")
  for line in inquiry.render(inquiry.ask(workers, logs)):
    print(line)


if __name__ == "__main__":
  cli.run(main)
