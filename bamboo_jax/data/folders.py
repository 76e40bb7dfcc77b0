"""The files in a folder of data, also behind links, without what is hidden."""

from collections.abc import Sequence
import os
import pathlib

from absl import logging

from bamboo_jax import base

_NUM_NAMED = 3


def list_files(root: base.StrPath) -> tuple[list[pathlib.Path], list[str]]:
  """Returns the files at any depth, sorted, and what is left out, with the reasons.

  Links are followed after all else, so that a link to a folder within `root` adds nothing.
  Raises `base.DataError` for a folder that cannot be read.
  """
  files, left_out, seen = list[pathlib.Path](), list[str](), set[str]()
  whole, folders, links = os.path.realpath(root), [os.fspath(root)], list[str]()
  while folders or links:
    folder = folders.pop() if folders else links.pop(0)
    real = os.path.realpath(folder)
    if real in seen or whole.startswith(os.path.join(real, "")):
      left_out.append(f"{os.path.relpath(folder, root)} (links to the rest)")
      continue
    seen.add(real)
    for entry in list_folder(folder):
      if entry.name.startswith("."):
        left_out.append(os.path.relpath(entry, root))
      elif entry.is_dir():
        (links if entry.is_symlink() else folders).append(entry.path)
      elif entry.is_file():
        files.append(pathlib.Path(entry))
      else:
        left_out.append(f"{os.path.relpath(entry, root)} (no file)")
  return sorted(files), left_out


def list_folder(folder: base.StrPath) -> list[os.DirEntry[str]]:
  """Returns the entries of a folder, sorted; raises `base.DataError`."""
  try:
    return sorted(os.scandir(os.fspath(folder)), key=lambda entry: entry.name)
  except OSError as error:
    raise base.DataError(f"Cannot read {folder}: {error.strerror}.") from error


def drop_repeated(paths: Sequence[pathlib.Path]) -> list[pathlib.Path]:
  """Returns each file once, if paths name it through links: by the path without links, if any."""
  firsts: dict[tuple[str, str], pathlib.Path] = {}
  for path in sorted(paths, key=lambda p: os.path.abspath(p.parent) != os.path.realpath(p.parent)):
    firsts.setdefault((os.path.realpath(path.parent), path.name), path)
  return sorted(firsts.values())


def warn_of(root: base.StrPath, left_out: Sequence[str]) -> None:
  """Logs in one line what is left out of a folder or pattern, if anything."""
  if left_out:
    more = len(left_out) - _NUM_NAMED
    rest = f" and {more} more" if more > 0 else ""
    logging.warning("Not read of %s: %s%s.", root, ", ".join(left_out[:_NUM_NAMED]), rest)
