"""The files in a folder of data, also behind links, without what is hidden.

What is left out (`.git`, `.ipynb_checkpoints`) is said in one line.
"""

from collections.abc import Sequence
import os
import pathlib
from typing import NamedTuple

from absl import logging

from bamboo_jax import base

_NUM_NAMED = 3


class FolderFiles(NamedTuple):
  """Files at any depth, sorted; and what was left out, with the reasons."""

  files: list[pathlib.Path]
  left_out: list[str]


def list_files(root: pathlib.Path) -> FolderFiles:
  """Returns the files in a folder, each folder read once.

  Links are followed after all else, so that a link to a folder within `root`
  adds nothing. Raises `base.DataError` for a folder that cannot be read.
  """
  found = FolderFiles([], [])
  whole, seen = os.path.realpath(root), set[str]()
  folders, links = [root], list[pathlib.Path]()
  while folders or links:
    folder = folders.pop() if folders else links.pop(0)
    real = os.path.realpath(folder)
    if real in seen or whole.startswith(os.path.join(real, "")):
      found.left_out.append(f"{folder.relative_to(root)} (links to the rest)")
      continue
    seen.add(real)
    for entry in list_folder(folder):
      path = pathlib.Path(entry)
      if is_hidden(entry.name):
        found.left_out.append(str(path.relative_to(root)))
      elif entry.is_dir():
        (links if entry.is_symlink() else folders).append(path)
      elif entry.is_file():
        found.files.append(path)
      else:
        found.left_out.append(f"{path.relative_to(root)} (no file)")
  return FolderFiles(sorted(found.files), found.left_out)


def list_folder(folder: pathlib.Path) -> list[os.DirEntry[str]]:
  """Returns the entries of a folder, sorted; raises `base.DataError`."""
  try:
    return sorted(os.scandir(folder), key=lambda entry: entry.name)
  except OSError as error:
    raise base.DataError(f"Cannot read {folder}: {error.strerror}.") from error


def is_hidden(name: str) -> bool:
  """Returns whether a file or folder is hidden, as those of tools are."""
  return name.startswith(".")


def drop_repeated(paths: Sequence[pathlib.Path]) -> list[pathlib.Path]:
  """Returns the files without those that another path names through links.

  Of several paths the one without links is kept, else the first.
  """
  real = [os.path.realpath(path.parent) for path in paths]
  firsts: dict[tuple[str, str], pathlib.Path] = {}
  for path, parent in sorted(
      zip(paths, real, strict=True), key=lambda pair: os.path.abspath(pair[0].parent) != pair[1]
  ):
    firsts.setdefault((parent, path.name), path)
  kept = {*firsts.values()}
  return [path for path in paths if path in kept]


def warn_of(root: str | os.PathLike[str], left_out: Sequence[str]) -> None:
  """Logs in one line what is left out of a folder or pattern, if anything."""
  if left_out:
    named = ", ".join(left_out[:_NUM_NAMED])
    more = len(left_out) - _NUM_NAMED
    named += f" and {more} more" if more > 0 else ""
    logging.warning("Not read of %s: %s.", root, named)
