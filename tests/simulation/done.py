"""Counts of histories that were explored, in a file, to go on from there."""

import pathlib

from bamboo_jax.base import files


def read(path: str | None, which: str) -> tuple[int, int]:
  """Returns how many histories were run before, and how many violated.

  Raises:
    ValueError: The file counts other histories than `which`.
  """
  if not path or not pathlib.Path(path).exists():
    return 0, 0
  text = pathlib.Path(path).read_text()
  words = text.split()
  if words[:-2] != which.split() or not "".join(words[-2:]).isdecimal():
    raise ValueError(f"--done={path} has {text!r}, no counts of {which}.")
  return int(words[-2]), int(words[-1])


def write(
    path: str | None, which: str, num_histories: int, num_violations: int
) -> None:
  """Writes the counts that `read` returns, if there is a file for them."""
  if path:
    counts = f"{which} {num_histories} {num_violations}"
    files.write_atomically(path, counts, sync=False)
