"""Shows whether the processes of a cluster grow from view to view; no test.

python -m tests.cluster_growth WORKDIR, while `bamboo cluster` runs there.

For each process that has lived since the first look: threads, sockets and
resident memory, then and now, whenever the view has changed, until the run is
over.
"""

from collections.abc import Sequence
import os
import pathlib
import re
import time
from typing import NamedTuple

from absl import app

from bamboo_jax.metrics import jsonl

_LOG = re.compile(r"n[0-9]+(\.agent)?\.log")


class Use(NamedTuple):
  """What a process has."""

  threads: int
  sockets: int
  mib: int

  def __str__(self) -> str:
    return f"{self.threads} threads {self.sockets} sockets {self.mib} MiB"


def look(workdir: str) -> dict[int, tuple[str, Use]]:
  """Returns kind and use of each agent and worker, by its process."""
  found = {}
  for path in pathlib.Path("/proc").glob("[0-9]*"):
    try:
      output = pathlib.Path(os.readlink(path / "fd" / "1"))
      log = _LOG.fullmatch(output.name)
      if log and output.parent == pathlib.Path(workdir, "logs").absolute():
        kind = "agent" if log[1] else "worker"
        found[int(path.name)] = (kind, _measure(path))
    except OSError:
      continue  # It has ended.
  return found


def _measure(path: pathlib.Path) -> Use:
  links = [os.readlink(fd) for fd in (path / "fd").iterdir()]
  status = dict(
      line.split(":", 1) for line in (path / "status").read_text().splitlines() if ":" in line
  )
  return Use(
      threads=int(status["Threads"]),
      sockets=sum(link.startswith("socket:") for link in links),
      mib=int(status["VmRSS"].split()[0]) // 1024,
  )


def _newest_view(workdir: pathlib.Path) -> int:
  path = workdir / "metrics.jsonl"
  lines = jsonl.read_lines(path) if path.exists() else ()
  return max((line["view"] for line in lines if "view" in line), default=0)


def main(argv: Sequence[str]) -> None:
  """Looks until the run is over."""
  workdir = argv[1]
  first: dict[int, tuple[str, Use]] = {}
  shown = 0
  while not (pathlib.Path(workdir) / "summary.json").exists():
    view = _newest_view(pathlib.Path(workdir))
    if view > shown:
      shown, now = view, look(workdir)
      first = first or now
      for pid in sorted(first.keys() & now.keys()):
        kind, before = first[pid]
        print(f"view {view} {kind} {pid}: {before} -> {now[pid][1]}", flush=True)
    time.sleep(0.5)


if __name__ == "__main__":
  app.run(main)
