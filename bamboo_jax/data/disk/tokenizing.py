"""Documents to files of tokens, in parallel, one file for each part.

A part is finished when its .idx exists, which is written last. So a run that
was interrupted continues with the parts that are missing, and the result does
not depend on the number of processes. `tokens.json` in the folder says what the
tokens were made of.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent import futures
import dataclasses
import functools
import itertools
import json
import multiprocessing
import os
import pathlib
from typing import Any, cast, IO, NamedTuple

from absl import logging
import numpy as np

from bamboo_jax import base
from bamboo_jax.data import chat, vocabularies
from bamboo_jax.data.disk import documents as documents_lib, token_files

FACTS = "tokens.json"
_DOCUMENTS_AT_ONCE = 256


@dataclasses.dataclass(frozen=True)
class TokenizingTask:
  """The documents to tokenize, and how.

  Attributes:
    paths: Files and folders of `datasets`, see `documents`.
    names: Their names in manifests.
    tokenizer: See `vocabularies.read_vocabulary`.
    fields: One or two, see `documents.read_part`.
    part_bytes: Approximate size of a part.
    end_token: Ends a document; None: as the tokenizer tells.
  """

  paths: tuple[pathlib.Path, ...]
  names: tuple[str, ...]
  tokenizer: str | None
  fields: tuple[str, ...] = ("text",)
  part_bytes: int = 1 << 26
  end_token: int | None = None

  @functools.cached_property
  def vocabulary(self) -> vocabularies.Vocabulary:
    """The vocabulary, read once."""
    return vocabularies.read_vocabulary(self.tokenizer, end_token=self.end_token)

  @functools.cached_property
  def template(self) -> chat.ChatTemplate | None:
    """The template of chats; None for other records and for texts."""
    if self.fields != (chat.FIELD,):
      return None
    if not isinstance(self.vocabulary, vocabularies.TokenizerFile):
      raise base.DataError(
          f"field={chat.FIELD} needs the option tokenizer: a tokenizer.json with a chat template, "
          f"or its folder, got {self.tokenizer!r}."
      )
    return chat.read_template(str(self.tokenizer))

  def describe(self) -> dict[str, Any]:
    """Returns everything that the tokens depend on, as JSON."""
    special = self.vocabulary.special
    entries = []
    for path, name in zip(self.paths, self.names, strict=True):
      files = sorted(path.glob("*.arrow")) if path.is_dir() else []
      described = {f"{name}/{file.name}": file for file in files} or {name: path}
      entries += [token_files.describe_file(f, n) for n, f in described.items()]
    return {
        "files": {e.name: f"{e.num_bytes}:{e.sha256}" for e in entries},
        "fields": [*self.fields],
        "part_bytes": self.part_bytes,
        "end": self.vocabulary.end,
        "special": special and [*special],
        **self.vocabulary.fingerprint,
        **({"template": self.template.sha256} if self.template else {}),
    }


class TokenizingProgress(NamedTuple):
  """What has been done; `num_finished` counts parts of earlier runs, too."""

  num_parts: int
  num_finished: int
  num_documents: int
  num_tokens: int


def run(
    task: TokenizingTask, out: str | os.PathLike[str], *, num_workers: int, waits: bool = False
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
  parts = documents_lib.find_parts(task.paths, task.part_bytes)
  facts = {**task.describe(), "num_parts": len(parts)}
  is_ours = (out / FACTS).exists() and _load_facts(out) == facts
  if is_ours and not _find_missing(out, len(parts)):
    # Finished, maybe by another user: it need not be writable.
    yield TokenizingProgress(len(parts), len(parts), 0, 0)
    return
  with base.lock_folder(out, waits=waits):
    check_facts(out, facts)
    base.write_atomically(out / FACTS, json.dumps(facts, indent=1))
    missing = _find_missing(out, len(parts))
    progress = TokenizingProgress(len(parts), len(parts) - len(missing), 0, 0)
    yield progress
    write = functools.partial(_write_part, task, out)
    given = ([parts[n] for n in missing], missing)
    try:
      for num_documents, num_tokens in _map(write, *given, num_workers):
        progress = TokenizingProgress(
            len(parts),
            progress.num_finished + 1,
            progress.num_documents + num_documents,
            progress.num_tokens + num_tokens,
        )
        yield progress
    except base.DataError:
      if not any(out.glob("*.idx")):  # Other flags may still be right.
        for file in (out / FACTS, *out.glob("*.tmp")):
          file.unlink(missing_ok=True)
      raise


def check_facts(out: pathlib.Path, facts: dict[str, Any]) -> None:
  """Raises `ValueError` if `out` has tokens of other files or settings.

  `facts` are those of `Task.describe`.
  """
  if not (out / FACTS).exists():
    return
  found = _load_facts(out)
  for key in sorted({*found, *facts}):
    old, new = found.get(key), facts.get(key)
    if old == new:
      continue
    if isinstance(old, dict) and isinstance(new, dict):
      names = [n for n in sorted({*old, *new}) if old.get(n) != new.get(n)]
      raise ValueError(
          f"{out} has the tokens of other files: {names[0]} has changed, or is"
          " in only one of them. Name another folder."
      )
    raise ValueError(
        f"{out} has tokens with {key}={old!r}, must be {new!r}. Name another " "folder."
    )


def read_facts(folder: pathlib.Path) -> dict[str, Any]:
  """Returns the facts of a folder of tokens; {} if another program wrote it.

  Raises `base.DataError` if parts are missing.
  """
  if not (folder / FACTS).exists():
    return {}
  facts = _load_facts(folder)
  for number in _find_missing(folder, facts["num_parts"])[:1]:
    raise base.DataError(
        f"{_name(folder, number, '.idx')} is missing: the folder is "
        "unfinished; run `bamboo tokenize` again, which goes on with it."
    )
  return facts


def _load_facts(folder: pathlib.Path) -> dict[str, Any]:
  facts: dict[str, Any] = json.loads((folder / FACTS).read_bytes())
  return facts


def digest_of(facts: Mapping[str, Any]) -> str:
  """Returns the digest of the tokenizer in `facts`; "" if it is unknown."""
  return str(facts.get("vocab_sha256", facts.get("tokens", "")))


def _map(
    write: "functools.partial[tuple[int, int]]",
    parts: Sequence[documents_lib.Part],
    numbers: Sequence[int],
    num_workers: int,
) -> Iterator[tuple[int, int]]:
  if not num_workers or len(parts) < 2:
    yield from map(write, parts, numbers)
    return
  context = multiprocessing.get_context("spawn")
  with futures.ProcessPoolExecutor(
      min(num_workers, len(parts)), mp_context=context, initializer=_use_one_core
  ) as pool:
    waiting = [*map(functools.partial(pool.submit, write), parts, numbers)]
    try:
      for done in futures.as_completed(waiting):
        yield done.result()
    finally:
      pool.shutdown(wait=True, cancel_futures=True)


def _use_one_core() -> None:
  os.environ["TOKENIZERS_PARALLELISM"] = "false"


def _write_part(
    task: TokenizingTask, out: pathlib.Path, part: documents_lib.Part, number: int
) -> tuple[int, int]:
  """Returns the numbers of documents and tokens that it has written."""
  vocabulary = task.vocabulary
  size = vocabulary.vocab_size
  dtype = np.dtype("u1" if size <= 256 else "<u2" if size <= 1 << 16 else "<i4")
  path, lengths, counts_D, empty = _name(out, number, ".bin"), [], [], []
  before = [os.stat(name) for name in part.paths]
  documents = documents_lib.read_part(part, task.fields)
  with open(path.with_suffix(".tmp"), "wb") as file:
    while group := [*itertools.islice(documents, _DOCUMENTS_AT_ONCE)]:
      encoded = _encode_chats(task, group) if task.template else _encode(vocabulary, group)
      for document, values in zip(group, encoded, strict=True):
        counts = [_write(file, value, dtype) for value in values]
        if not any(counts):
          empty.append(document.where)
          continue
        if not task.template:  # A template ends a chat itself.
          counts[-1] += _write(file, [[vocabulary.end]], dtype)
        lengths += counts
        counts_D.append(len(counts))
  for name, old in zip(part.paths, before, strict=True):
    new = os.stat(name)
    if (new.st_size, new.st_mtime_ns) != (old.st_size, old.st_mtime_ns):
      raise base.DataError(f"{name} has changed while it was read.")
  if empty:
    logging.warning("Left out %d documents without text, the first is %s.", *(len(empty), empty[0]))
  path.with_suffix(".tmp").rename(path)
  token_files.write_index(path.with_suffix(".idx"), lengths, dtype=dtype, parts=counts_D)
  return len(counts_D), sum(lengths)


def _encode_chats(
    task: TokenizingTask, group: Sequence[documents_lib.Document]
) -> Iterator[list[Iterable[Sequence[int]]]]:
  """Yields the tokens of each chat: by turns a prompt and what is learned."""
  template, tokenizer = task.template, task.vocabulary
  assert template and isinstance(tokenizer, vocabularies.TokenizerFile)
  for document in group:
    (record,) = document.values
    try:
      tokens, is_learned = chat.encode(cast(dict[str, Any], record), template, tokenizer)
    except base.DataError as error:
      raise base.DataError(f"{document.where}: {error}") from error
    cuts = np.flatnonzero(np.diff(is_learned, prepend=False)).tolist()
    cuts += [len(tokens)] * (2 - len(cuts) % 2)  # The last part is learned, maybe empty.
    yield [[tokens[start:stop]] for start, stop in itertools.pairwise([0, *cuts])]


def _encode(
    vocabulary: vocabularies.Vocabulary, group: Sequence[documents_lib.Document]
) -> Iterator[list[Iterable[Sequence[int]]]]:
  """Yields the tokens of each document: for each field, in pieces."""
  texts = []
  for document in group:
    for value in document.values:
      if isinstance(value, str):
        try:
          value.encode()
        except UnicodeEncodeError as error:
          raise base.DataError(f"{document.where}: {error}.") from error
        texts.append(value)
  encoded = iter(vocabulary.encode_texts(texts))
  for document in group:
    values: list[Iterable[Sequence[int]]] = []
    for value in document.values:
      if isinstance(value, str):
        values.append([next(encoded)])
      elif isinstance(value, Sequence):
        tokens = cast(Sequence[int], value)
        values.append([_without_end(vocabulary, document, tokens)])
      elif vocabulary.in_pieces:
        values.append(vocabulary.encode_texts([text])[0] for text in value)
      else:
        values.append(vocabulary.encode_texts(["".join(value)]))
    yield values


def _without_end(
    vocabulary: vocabularies.Vocabulary, document: documents_lib.Document, tokens: Sequence[int]
) -> Sequence[int]:
  """Returns the tokens of a row; `base.DataError` for an unknown one."""
  for token in tokens:
    if token >= vocabulary.vocab_size:
      raise base.DataError(
          f"{document.where} has the token {token}, must be below the "
          f"tokenizer's vocab_size={vocabulary.vocab_size}."
      )
  return tokens[:-1] if tokens and tokens[-1] == vocabulary.end else tokens


def _write(file: IO[bytes], pieces: Iterable[Sequence[int]], dtype: np.dtype) -> int:
  """Returns the number of tokens that it has written."""
  count = 0
  for piece in pieces:
    file.write(np.asarray(piece, dtype).tobytes())
    count += len(piece)
  return count


def _find_missing(folder: pathlib.Path, num_parts: int) -> list[int]:
  """Returns the parts that are not finished, by number."""
  numbers = range(num_parts)
  return [n for n in numbers if not _name(folder, n, ".idx").exists()]


def _name(folder: pathlib.Path, number: int, suffix: str) -> pathlib.Path:
  return folder / f"{number:05d}{suffix}"
