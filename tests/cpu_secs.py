"""Processor seconds of test files, so that the long files run first.

A run of whole files writes them to build/cpu_secs.txt, a line per file. A fresh
clone has those of the longest files in tests/long_files.txt, made by

  sort -nr build/cpu_secs.txt | head -30 >tests/long_files.txt
"""

from collections.abc import Mapping
import os
import pathlib

from bamboo_jax.base import files

_ROOT = pathlib.Path(__file__).resolve().parents[1]
RECORD = _ROOT / "build" / "cpu_secs.txt"
LONG_FILES = _ROOT / "tests" / "long_files.txt"
_TICK_SECS = 1 / os.sysconf("SC_CLK_TCK")


def read(path: pathlib.Path) -> dict[str, float]:
  """Returns the seconds by file; empty without a record."""
  lines = path.read_text().splitlines() if path.exists() else []
  return {name: float(secs) for secs, name in map(str.split, lines)}


def add(path: pathlib.Path, secs: Mapping[str, float]) -> None:
  """Replaces the seconds of some files in the record."""
  path.parent.mkdir(exist_ok=True)
  lines = [f"{s:.1f} {name}\n" for name, s in (read(path) | {**secs}).items()]
  files.write_atomically(path, "".join(lines), sync=False)


def used() -> float:
  """Returns the seconds of this process and of those that it has started.

  A process whose parent has ended is missing, until the parent has waited.
  """
  parents, ticks = {}, {}
  for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
    try:
      fields = path.read_text().rpartition(")")[2].split()
    except OSError:
      continue  # It has ended.
    pid = int(path.parent.name)
    # With the children that it has waited for: user, system, and theirs.
    parents[pid], ticks[pid] = int(fields[1]), sum(map(int, fields[11:15]))

  def is_ours(pid):
    while pid in parents and pid != os.getpid():
      pid = parents[pid]
    return pid == os.getpid()

  return _TICK_SECS * sum(ticks[pid] for pid in ticks if is_ours(pid))
