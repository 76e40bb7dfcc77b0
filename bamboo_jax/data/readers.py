"""Reads texts from files: those of the running Python, or a glob pattern.

Documents are sorted by name. An unreadable file is a `base.DataError` of one
line with file and reason: skipping it would change the text.
"""

from collections.abc import Iterator
import importlib
import os
import pathlib
import sysconfig

from bamboo_jax import base
from bamboo_jax.data import corpus
from bamboo_jax.data.disk import documents as documents_lib, files

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


def read_stdlib() -> tuple[corpus.CorpusDocument, ...]:
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
      corpus.CorpusDocument(f"help/{name}", text.encode()) for name, text in sorted(topics.items())
  ]
  return (*documents, *read_library(sysconfig.get_path("stdlib")))


def read_library(root: str | os.PathLike[str]) -> tuple[corpus.CorpusDocument, ...]:
  """Returns the Python sources below `root`, named "lib/...".

  Excludes installed packages, tests and generated files.
  """
  root = pathlib.Path(root)
  try:
    documents = tuple(
        corpus.CorpusDocument(f"lib/{name}", (root / name).read_bytes())
        for name in sorted(_library_names(root))
    )
  except OSError as error:
    raise base.DataError(f"Cannot read {error.filename}: {error.strerror}.") from error
  if not documents:
    raise base.DataError(f"There are no Python sources in {root}.")
  return documents


def read_files(pattern: str) -> tuple[corpus.CorpusDocument, ...]:
  """Returns the files of `files.find_files`, without byte order marks.

  Raises `base.DataError` if a file cannot be read or is not UTF-8.
  """
  found = files.find_files(pattern)
  documents = [
      corpus.CorpusDocument(name, "".join(documents_lib.read_text(str(path))).encode())
      for name, path in found
  ]
  if not any(document.content for document in documents):
    raise base.DataError(f"There is no text: {found[0][1]} is empty.")
  return tuple(documents)


def _library_names(root: pathlib.Path) -> Iterator[str]:
  """Yields the paths of the sources, relative to `root`, in no order."""

  def fail(error: OSError) -> None:
    raise error

  for folder, subfolders, names in os.walk(root, onerror=fail):
    subfolders[:] = [name for name in subfolders if name not in _SKIPPED]
    for name in names:
      if name.endswith(".py") and not name.startswith(_GENERATED_PREFIX):
        yield pathlib.Path(folder, name).relative_to(root).as_posix()
