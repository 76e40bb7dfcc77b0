"""A text in memory as an ordered list of documents: its manifest, its split, that of Python.

The manifest has the SHA-256 of every document, so that a resume with another
text is rejected, and the difference found.
"""

from collections.abc import Sequence
import dataclasses
import hashlib
import importlib
import json
import math
import os
import pathlib
import sysconfig

from bamboo_jax import base

# Of the library: installed packages, tests, compiled files, and help topics, read separately.
_SKIPPED = frozenset(
    "__pycache__ dist-packages idle_test pydoc_data site-packages test tests".split()
)
# Written when Python was built; describes the machine.
_GENERATED_PREFIX = "_sysconfigdata"


@dataclasses.dataclass(frozen=True)
class CorpusDocument:
  """A file or a part of it; `name` is relative to the root, with slashes."""

  name: str
  content: bytes


@dataclasses.dataclass(frozen=True)
class ManifestEntry:
  """Manifest entry of a file.

  `sha256` is hexadecimal; with the prefix "samples:" it covers parts of the
  file only.
  """

  name: str
  num_bytes: int
  sha256: str


Manifest = tuple[ManifestEntry, ...]  # The files of a text, in order.


def make_manifest(documents: Sequence[CorpusDocument]) -> Manifest:
  """Returns the manifest of a text."""
  return tuple(
      ManifestEntry(d.name, len(d.content), hashlib.sha256(d.content).hexdigest())
      for d in documents
  )


def find_digests(manifest: Manifest) -> dict[str, str]:
  """Returns size and digest of each file by its name, as fingerprints have them."""
  return {e.name: f"{e.num_bytes}:{e.sha256}" for e in manifest}


def find_sha256(manifest: Manifest) -> str:
  """Returns the digest, in hex, of the output of `sha256sum` on the documents."""
  lines = "".join(f"{e.sha256}  {e.name}\n" for e in manifest)
  return hashlib.sha256(lines.encode(errors="surrogateescape")).hexdigest()


def render_manifest(manifest: Manifest) -> str:
  """Returns a manifest as a JSON object, for people and other tools."""
  content = {
      "sha256": find_sha256(manifest),
      "num_bytes": sum(entry.num_bytes for entry in manifest),
      "files": [dataclasses.asdict(entry) for entry in manifest],
  }
  return json.dumps(content, indent=1) + "\n"


def split_tail(
    documents: Sequence[CorpusDocument], *, fraction: float
) -> tuple[tuple[CorpusDocument, ...], tuple[CorpusDocument, ...]]:
  """Splits a text into its head and its tail.

  The tail has at least `fraction` of the bytes, from 0 to below 1. The split
  may be inside a document, but not inside a UTF-8 character, and depends on the
  bytes only, so it is the same for any kind of tokens.
  """
  missing = math.ceil(fraction * sum(len(d.content) for d in documents))
  head = list(documents)
  tail = []
  while missing > 0:
    last = head.pop()
    cut = max(len(last.content) - missing, 0)
    while cut > 0 and 0x80 <= last.content[cut] < 0xC0:
      cut -= 1
    missing -= len(last.content) - cut
    tail.append(CorpusDocument(last.name, last.content[cut:]))
    if cut > 0:
      head.append(CorpusDocument(last.name, last.content[:cut]))
  return tuple(head), tuple(reversed(tail))


def read_stdlib() -> tuple[CorpusDocument, ...]:
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
      CorpusDocument(f"help/{name}", text.encode()) for name, text in sorted(topics.items())
  ]
  return (*documents, *read_library(sysconfig.get_path("stdlib")))


def read_library(root: base.StrPath) -> tuple[CorpusDocument, ...]:
  """Returns the Python sources below `root`, named "lib/...".

  Excludes installed packages, tests and generated files.
  """

  def fail(error: OSError) -> None:
    raise error

  root, names = pathlib.Path(root), list[str]()
  try:
    for folder, subfolders, inner in os.walk(root, onerror=fail):
      subfolders[:] = [name for name in subfolders if name not in _SKIPPED]
      names += [
          pathlib.Path(folder, name).relative_to(root).as_posix()
          for name in inner
          if name.endswith(".py") and not name.startswith(_GENERATED_PREFIX)
      ]
    documents = tuple(
        CorpusDocument(f"lib/{name}", (root / name).read_bytes()) for name in sorted(names)
    )
  except OSError as error:
    raise base.DataError(f"Cannot read {error.filename}: {error.strerror}.") from error
  if not documents:
    raise base.DataError(f"There are no Python sources in {root}.")
  return documents
