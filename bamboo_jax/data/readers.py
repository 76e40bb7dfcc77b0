"""Reads texts from files: those of the running Python, or a glob pattern.

Documents are sorted by name. An unreadable file is a `base.DataError` of one
line with file and reason: skipping it would change the text.
"""

import codecs
from collections.abc import Iterator
import glob
import importlib
import os
import pathlib
import stat
import sysconfig

from bamboo_jax import base
from bamboo_jax.data import corpus

# Excluded: installed packages, tests, compiled files.
_SKIPPED = frozenset(
    (
        "__pycache__",
        "dist-packages",
        "idle_test",
        "pydoc_data",  # The help topics, read separately.
        "site-packages",
        "test",
        "tests",
    )
)
# Written when Python was built; describes the machine.
_GENERATED_PREFIX = "_sysconfigdata"


def read_stdlib() -> tuple[corpus.Document, ...]:
  """Returns the help topics and the sources of the running Python, about 12 MB.

  The topics come first, under "help/", then the library, under "lib/".
  """
  try:
    topics = importlib.import_module("pydoc_data.topics").topics
  except ImportError as error:
    raise base.DataError(
        f"This Python has no help topics ({error}); give paths of texts, or a "
        "Python with its whole standard library."
    ) from error
  documents = [
      corpus.Document(f"help/{name}", text.encode())
      for name, text in sorted(topics.items())
  ]
  return (*documents, *read_library(sysconfig.get_path("stdlib")))


def read_library(
    root: str | os.PathLike[str],
) -> tuple[corpus.Document, ...]:
  """Returns the Python sources below `root`, named "lib/...".

  Excludes installed packages, tests and generated files.
  """
  documents = tuple(
      corpus.Document(f"lib/{name}", _read(pathlib.Path(root, name)))
      for name in sorted(_library_names(pathlib.Path(root)))
  )
  if not documents:
    raise base.DataError(f"There are no Python sources in {root}.")
  return documents


def read_files(pattern: str) -> tuple[corpus.Document, ...]:
  """Returns the files that match a glob pattern, named relative to its root.

  The root is the path before the first wildcard, so names stay the same when a
  text is moved. `**` matches any number of folders, `~` is the home folder; as
  in `glob.glob`, unreadable folders are skipped. A byte order mark is removed.

  Raises `base.DataError` if a file cannot be read or has a zero byte.
  """
  pattern = os.path.expanduser(pattern)
  paths = [
      path
      for path in glob.glob(pattern, recursive=True)
      if not os.path.isdir(path)
  ]
  if not paths:
    raise base.DataError(f"No file matches {pattern!r}.")
  root = _pattern_root(pattern)
  names = {pathlib.Path(p).relative_to(root).as_posix(): p for p in paths}
  documents = tuple(
      corpus.Document(name, _read_text(pathlib.Path(path)))
      for name, path in sorted(names.items())
  )
  if not any(document.content for document in documents):
    raise base.DataError(
        f"There is no text: {paths[0]} is empty, and so is every other file "
        f"that matches {pattern!r}."
    )
  return documents


def _library_names(root: pathlib.Path) -> Iterator[str]:
  """Yields the paths of the sources, relative to `root`, in no order."""

  def fail(error: OSError) -> None:
    raise _unreadable(error.filename, error) from error

  for folder, subfolders, files in os.walk(root, onerror=fail):
    subfolders[:] = [name for name in subfolders if name not in _SKIPPED]
    for name in files:
      if name.endswith(".py") and not name.startswith(_GENERATED_PREFIX):
        yield pathlib.Path(folder, name).relative_to(root).as_posix()


def _pattern_root(pattern: str) -> pathlib.Path:
  """Returns the folder before the first component with a wildcard."""
  path = pathlib.Path(pattern)
  while path != path.parent and (
      glob.has_magic(str(path)) or not path.is_dir()
  ):
    path = path.parent
  return path


def _read_text(path: pathlib.Path) -> bytes:
  content = _read(path).removeprefix(codecs.BOM_UTF8)
  if (place := content.find(0)) >= 0:
    raise base.DataError(f"Cannot read {path} as text: byte {place} is 0.")
  return content


def _read(path: pathlib.Path) -> bytes:
  try:
    if not stat.S_ISREG(path.stat().st_mode):
      # Opening a pipe would block, and a device may be endless.
      raise base.DataError(f"Cannot read {path}: it is not a regular file.")
    return path.read_bytes()
  except OSError as error:
    raise _unreadable(path, error) from error


def _unreadable(path: str | os.PathLike[str], error: OSError) -> base.DataError:
  return base.DataError(f"Cannot read {path}: {error.strerror or error}.")
