"""Processor seconds of test files, so that the long files run first.

A run of whole files writes them to build/cpu_secs.txt, a line per file; of others they are
guessed by their room and size.
"""

from collections.abc import Mapping
import os
import pathlib

from bamboo_jax.base import files

_ROOT = pathlib.Path(__file__).resolve().parents[1]
RECORD = _ROOT / "build" / "cpu_secs.txt"
# Of a file, about; of 30 files that took two thirds of the time, all were in these rooms.
_ROOM_SECS = {
    **{"launch": 40.0, "deploy": 35.0, "api": 30.0, "verify": 25.0},
    **{"training": 20.0, "exchange": 15.0, "runtime": 12.0, "models": 10.0},
}
_OTHER_SECS = 2.0
_SECS_PER_BYTE = 1e-6
_TICK_SECS = 1 / os.sysconf("SC_CLK_TCK")


def read(path: pathlib.Path) -> dict[str, float]:
  """Returns the seconds by file; empty without a record."""
  lines = path.read_text().splitlines() if path.exists() else []
  return {name: float(secs) for secs, name in map(str.split, lines)}


def guess(name: str) -> float:
  """Returns about how long a test file takes that no run has recorded."""
  path = _ROOT / name
  num_bytes = path.stat().st_size if path.exists() else 0
  return (
      _ROOM_SECS.get(name.removeprefix("tests/").split("/")[0], _OTHER_SECS)
      + num_bytes * _SECS_PER_BYTE
  )


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
