"""Documents to files of tokens, in parallel, one file for each part.

A part is finished when its .idx exists, which is written last. So a run that
was interrupted continues with the parts that are missing, and the result does
not depend on the number of processes. `tokens.json` in the folder says what the
tokens were made of.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent import futures
import dataclasses
import functools
import itertools
import json
import multiprocessing
import os
import pathlib
from typing import Any, cast, NamedTuple

from absl import logging
import numpy as np

from bamboo_jax import base
from bamboo_jax.data import chat, corpus, vocabularies
from bamboo_jax.data.disk import documents as documents_lib, token_files

FACTS = "tokens.json"
_DOCUMENTS_AT_ONCE = 256


@dataclasses.dataclass(frozen=True)
class TokenizingTask:
  """The documents to tokenize, and how.

  Attributes:
    named: Files and folders of `datasets`, see `documents`, with their names in manifests.
    tokenizer: See `vocabularies.read_vocabulary`.
    fields: One or two, see `documents.read_part`.
    end_token: Ends a document; None: as the tokenizer tells.
    part_bytes: Approximate size of a part.
  """

  named: Sequence[tuple[str, pathlib.Path]]
  tokenizer: str | None
  fields: tuple[str, ...] = ("text",)
  end_token: int | None = None
  part_bytes: int = 1 << 26

  def __post_init__(self) -> None:
    if len(self.fields) > 2:
      raise ValueError(f"field must be one name, or two, got {','.join(self.fields)!r}.")

  @property
  def vocabulary(self) -> vocabularies.Vocabulary:
    """The vocabulary, read once by each process."""
    return _read_vocabulary(self.tokenizer, self.end_token)

  @property
  def template(self) -> chat.ChatTemplate | None:
    """The template of chats; None for other records and for texts."""
    if self.fields != (chat.FIELD,):
      return None
    if self.vocabulary.tokenizer is None:
      raise base.DataError(
          f"field={chat.FIELD} needs the option tokenizer: a tokenizer.json with a chat template, "
          f"or its folder, got {self.tokenizer!r}."
      )
    return chat.read_template(str(self.tokenizer))

  @functools.cached_property
  def manifest(self) -> corpus.Manifest:
    """The files as they were when it was first asked for."""
    entries = []
    for name, path in self.named:
      described = {name: path}
      if path.is_dir():
        described = {f"{name}/{file.name}": file for file in sorted(path.glob("*.arrow"))}
      entries += [token_files.describe_file(f, n) for n, f in described.items()]
    return tuple(entries)

  @property
  def facts(self) -> dict[str, Any]:
    """Everything that the tokens depend on, as JSON."""
    special, template = self.vocabulary.special, self.template
    return {
        "files": corpus.find_digests(self.manifest),
        "fields": [*self.fields],
        "part_bytes": self.part_bytes,
        "end": self.vocabulary.end,
        "special": special and [*special],
        **self.vocabulary.fingerprint,
        **({"template": template.sha256} if template else {}),
    }


class TokenizingProgress(NamedTuple):
  """What has been done; `num_finished` counts parts of earlier runs, too."""

  num_parts: int
  num_finished: int
  num_documents: int
  num_tokens: int


def run(
    task: TokenizingTask, out: base.StrPath, *, num_workers: int, waits: bool = False
) -> Iterator[TokenizingProgress]:
  """Writes `out`/NNNNN.bin and .idx; yields after each part.

  Args:
    num_workers: Processes; 0: only this one.
    waits: Whether to block while another process writes there.

  Raises:
    ValueError: The folder has other tokens, or another process writes there.
    base.DataError: A document cannot be read or written in these tokens.
    OSError: A file cannot be read or written.
  """
  out = pathlib.Path(out)
  parts = documents_lib.find_parts([path for _, path in task.named], task.part_bytes)
  if not parts:
    raise base.DataError(f"There is no text: {task.named[0][1]} is empty.")
  facts = {**task.facts, "num_parts": len(parts)}
  if _load_facts(out) == facts and not _find_missing(out, len(parts)):
    # Finished, maybe by another user: it need not be writable.
    yield TokenizingProgress(len(parts), len(parts), 0, 0)
    return
  with base.lock_folder(out, waits=waits):
    found = _load_facts(out)
    for key in sorted({*found, *facts}) if found else ():
      old, new = found.get(key), facts.get(key)
      if old == new:
        continue
      if isinstance(old, dict) and isinstance(new, dict):
        name = next(n for n in sorted({*old, *new}) if old.get(n) != new.get(n))
        raise ValueError(
            f"{out} has the tokens of other files: {name} has changed, or is"
            " in only one of them. Name another folder."
        )
      raise ValueError(
          f"{out} has tokens with {key}={old!r}, must be {new!r}. Name another folder."
      )
    base.write_atomically(out / FACTS, json.dumps(facts, indent=1))
    missing = _find_missing(out, len(parts))
    finished, num_documents, num_tokens = len(parts) - len(missing), 0, 0
    yield TokenizingProgress(len(parts), finished, 0, 0)
    write = functools.partial(_write_part, task, out)
    try:
      for written in _map(write, [(parts[n], n) for n in missing], num_workers):
        finished, num_documents = finished + 1, num_documents + written[0]
        num_tokens += written[1]
        yield TokenizingProgress(len(parts), finished, num_documents, num_tokens)
    except base.DataError:
      if not any(out.glob("*.idx")):  # Other flags may still be right.
        for file in (out / FACTS, *out.glob("*.tmp")):
          file.unlink(missing_ok=True)
      raise


def read_facts(folder: pathlib.Path) -> dict[str, Any]:
  """Returns the facts of a folder of tokens; {} if another program wrote it.

  Raises `base.DataError` if parts are missing.
  """
  facts = _load_facts(folder)
  for number in _find_missing(folder, facts.get("num_parts", 0))[:1]:
    raise base.DataError(
        f"{folder / f'{number:05d}.idx'} is missing: the folder is "
        "unfinished; run `bamboo tokenize` again, which goes on with it."
    )
  return facts


def digest_of(facts: Mapping[str, Any]) -> str:
  """Returns the digest of the tokenizer in `facts`; "" if it is unknown."""
  return str(facts.get("vocab_sha256", facts.get("tokens", "")))


def _load_facts(folder: pathlib.Path) -> dict[str, Any]:
  file = folder / FACTS
  facts: dict[str, Any] = json.loads(file.read_bytes()) if file.exists() else {}
  return facts


@functools.lru_cache(maxsize=1)
def _read_vocabulary(tokenizer: str | None, end_token: int | None) -> vocabularies.Vocabulary:
  return vocabularies.read_vocabulary(tokenizer, end_token=end_token)


def _map(
    write: Callable[[documents_lib.Part, int], tuple[int, int]],
    given: Sequence[tuple[documents_lib.Part, int]],
    num_workers: int,
) -> Iterator[tuple[int, int]]:
  if not num_workers or len(given) < 2:
    yield from itertools.starmap(write, given)
    return
  context = multiprocessing.get_context("spawn")
  with futures.ProcessPoolExecutor(
      min(num_workers, len(given)), mp_context=context, initializer=_use_one_core
  ) as pool:
    try:
      for done in futures.as_completed([pool.submit(write, *part) for part in given]):
        yield done.result()
    finally:
      pool.shutdown(wait=True, cancel_futures=True)


def _use_one_core() -> None:
  os.environ["TOKENIZERS_PARALLELISM"] = "false"


def _write_part(
    task: TokenizingTask, out: pathlib.Path, part: documents_lib.Part, number: int
) -> tuple[int, int]:
  """Returns the numbers of documents and tokens that it has written."""
  vocabulary, template = task.vocabulary, task.template
  size = vocabulary.vocab_size
  dtype = np.dtype("u1" if size <= 256 else "<u2" if size <= 1 << 16 else "<i4")
  path, lengths, counts_D, empty = out / f"{number:05d}.bin", [], [], []
  before = [os.stat(name) for name in part.paths]
  documents = documents_lib.read_part(part, task.fields)
  with open(path.with_suffix(".tmp"), "wb") as file:
    while group := [*itertools.islice(documents, _DOCUMENTS_AT_ONCE)]:
      for (where, _), values in zip(group, _encode(vocabulary, template, group), strict=True):
        counts = []  # Of tokens, for each value, which is in pieces.
        for value in values:
          counts.append(0)
          for piece in value:
            file.write(np.asarray(piece, dtype).tobytes())
            counts[-1] += len(piece)
        if not any(counts):
          empty.append(where)
          continue
        if not template:  # A template ends a chat itself.
          file.write(np.asarray(vocabulary.end, dtype).tobytes())
          counts[-1] += 1
        lengths += counts
        counts_D.append(len(counts))
  for name, old in zip(part.paths, before, strict=True):
    new = os.stat(name)
    if (new.st_size, new.st_mtime_ns) != (old.st_size, old.st_mtime_ns):
      raise base.DataError(f"{name} has changed while it was read.")
  if empty:
    logging.warning(
        "Documents without text left out: %d, the first is %s.", *(len(empty), empty[0])
    )
  path.with_suffix(".tmp").rename(path)
  token_files.write_index(path.with_suffix(".idx"), lengths, dtype=dtype, parts=counts_D)
  return len(counts_D), sum(lengths)


def _encode(
    vocabulary: vocabularies.Vocabulary,
    template: chat.ChatTemplate | None,
    group: Sequence[documents_lib.Document],
) -> Iterator[list[Iterable[Sequence[int]]]]:
  """Yields the tokens of each document: for each value, in pieces.

  The values of a chat are by turns a prompt and what is learned.
  """
  texts = [value for _, values in group for value in values if isinstance(value, str)]
  encoded = iter(vocabulary.encode_texts(texts))
  for where, values in group:
    tokens: list[Iterable[Sequence[int]]] = []
    for value in values:
      if isinstance(value, str):
        tokens.append([next(encoded)])
      elif isinstance(value, list):
        for token in value:
          if token >= vocabulary.vocab_size:
            raise base.DataError(
                f"{where} has the token {token}, must be below the "
                f"tokenizer's vocab_size={vocabulary.vocab_size}."
            )
        tokens.append([value[:-1] if value[-1:] == [vocabulary.end] else value])
      elif isinstance(value, dict):
        assert template
        try:
          ids, is_learned = chat.encode(value, template, vocabulary.tokenizer)
        except base.DataError as error:
          raise base.DataError(f"{where}: {error}") from error
        cuts = np.flatnonzero(np.diff(is_learned, prepend=False)).tolist()
        cuts += [len(ids)] * (2 - len(cuts) % 2)  # The last part is learned, maybe empty.
        tokens += [[ids[start:stop]] for start, stop in itertools.pairwise([0, *cuts])]
      else:
        pieces = cast(Iterator[str], value)
        if not vocabulary.in_pieces:
          pieces = iter(["".join(pieces)])
        tokens.append(vocabulary.encode_texts([piece])[0] for piece in pieces)
    yield tokens


def _find_missing(folder: pathlib.Path, num_parts: int) -> list[int]:
  """Returns the parts that are not finished, by number."""
  return [n for n in range(num_parts) if not (folder / f"{n:05d}.idx").exists()]
