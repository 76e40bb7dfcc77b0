"""Seconds of test files, so that the long files run first.

A run of whole files writes them to build/file_secs.txt, a line per file; of others they are
guessed by their room and size.
"""

from collections.abc import Mapping
import pathlib

from bamboo_jax.base import files
from tests import folders

RECORD = folders.ROOT / "build" / "file_secs.txt"
# Of a file, about; of 30 files that took two thirds of the time, all were in these rooms.
_ROOM_SECS = {
    "launch": 40.0,
    "deploy": 35.0,
    "api": 30.0,
    "verify": 25.0,
    "training": 20.0,
    "exchange": 15.0,
    "runtime": 12.0,
    "models": 10.0,
}
_OTHER_SECS = 2.0
_SECS_PER_BYTE = 1e-6


def read(path: pathlib.Path) -> dict[str, float]:
  """Returns the seconds by file; empty without a record."""
  lines = path.read_text().splitlines() if path.exists() else []
  return {name: float(secs) for secs, name in map(str.split, lines)}


def guess(name: str) -> float:
  """Returns about how long a test file takes that no run has recorded."""
  path = folders.ROOT / name
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
