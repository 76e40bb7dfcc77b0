"""The source `files`: tokens, texts or records on disk, by their paths.

Texts and records are first tokenized, once, to a folder in the user's cache;
`bamboo tokenize` does it in advance, and in parallel. All of them are then read
as `token_files`. The files in a folder are found also behind links, without what is hidden.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import glob
import hashlib
import json
import os
import pathlib
import shlex
from typing import Any

from absl import logging

from bamboo_jax import base
from bamboo_jax.data import chat, corpus, mixture, samples, vocabularies
from bamboo_jax.data.disk import (
    documents as documents_lib,
    packing as packing_lib,
    token_files,
    tokenizing,
)

_TOKENS = (".bin", ".npy")
_NUM_NAMED = 3


def make_files(
    *,
    path: str,
    sequence_length: int,
    vocab_size: int | None = None,
    documents: bool | None = None,
    heldout_path: str | None = None,
    heldout_fraction: float = 0.02,
    packing: str = "stream",
    loss: str | None = None,
    field: str = "text",
    tokenizer: str | None = None,
    dtype: str | None = None,
    end_token: int | None = None,
    cache_dir: base.StrPath | None = None,
) -> samples.Source:
  """Returns samples of files of tokens, texts or records.

  Args:
    path: A file, a folder or a glob pattern; or several with weights, a
      mixture, as "0.7 web/*.bin 0.3 code".
    documents: Whether samples tell documents apart, as the model's option of
      this name asks.
    heldout_path: Files for evaluation; None: the last `heldout_fraction`.
    heldout_fraction: Share of the samples, for evaluation.
    packing: "stream": documents end to end; or "whole": only whole ones.
    loss: "all" tokens, or those of the "completion"; None: the latter if
      `field` has two names, or is "messages".
    field: Field of records with the text or its tokens; or two such fields, as
      "prompt,completion"; or "messages", see `chat`.
    tokenizer: For texts and records: a tokenizer.json or its folder; None: each
      byte is a token.
    dtype: Type of tokens in a .bin without a header; None: "uint16".
    end_token: Ends a document, in files of tokens without an index, and in
      texts; None: the token that the tokenizer tells.
    cache_dir: Folder of tokenized texts; None: bamboo_jax/tokens in the user's
      cache.

  Raises:
    ValueError: An option is impossible.
    base.DataError: A file is damaged or missing, or there is too little.
  """
  samples.check_fraction(heldout_fraction)
  fields = tuple(field.split(","))
  loss = loss or ("completion" if len(fields) == 2 or field == chat.FIELD else "all")
  options = packing_lib.PackingOptions(sequence_length, packing, masked=bool(documents), loss=loss)
  task = tokenizing.TokenizingTask((), tokenizer, fields, end_token)

  def open_path(
      path: str,
  ) -> tuple[list[token_files.TokenFile], corpus.Manifest, Mapping[str, Any]]:
    """Returns files of tokens, their manifest, and what `bamboo tokenize` tells of them."""
    named = find_files(path)
    manifest: corpus.Manifest = ()
    if named[0][1].suffix not in _TOKENS:
      of_texts = dataclasses.replace(task, named=named)
      vocabularies.check_size(task.vocabulary, tokenizer, vocab_size)
      named, manifest = _tokenize(of_texts, cache_dir), of_texts.manifest
    facts = {p.parent: tokenizing.read_facts(p.parent) for _, p in named}
    for folder, found in facts.items():
      if vocab_size is not None and found.get("vocab_size", 0) > vocab_size:
        raise base.DataError(
            f"{folder} has tokens of a vocab_size={found['vocab_size']}, more "
            f"than the model's {vocab_size}."
        )
    digests = {str(f): tokenizing.digest_of(found) for f, found in facts.items() if found}
    if tokenizer is not None and digests:
      # Read again: a task keeps the one that it has read.
      vocabulary = vocabularies.read_vocabulary(tokenizer, end_token=end_token)
      digests[tokenizer] = tokenizing.digest_of(vocabulary.fingerprint)
    for folder_or_file, digest in digests.items():
      first = next(iter(digests))
      if digest != digests[first]:
        raise base.DataError(f"{first} has tokens of another tokenizer than {folder_or_file}.")
    files = [
        token_files.open_file(
            p,
            dtype=dtype,
            vocab_size=vocab_size,
            end=facts[p.parent].get("end") if end_token is None else end_token,
        )
        for _, p in named
    ]
    filled = [file for file in files if file.num_tokens]
    for file in filled:
      if file.dtype != filled[0].dtype:
        raise base.DataError(
            f"{file.name} has tokens of {file.dtype}, must be {filled[0].dtype}, "
            f"as {filled[0].name}."
        )
      # Most errors of a file are found at once.
      file.read(0, min(file.num_tokens, 1 << 20))
    manifest = manifest or tuple(token_files.describe_file(p, name) for name, p in named)
    return files, manifest, {"vocab_size": vocab_size, **facts[named[0][1].parent]}

  def make(path: str) -> samples.Source:
    train, manifest, facts = open_path(path)
    heldout: float | list[token_files.TokenFile] = heldout_fraction
    if heldout_path is not None:
      heldout, other, _ = open_path(heldout_path)
      manifest += other
    return packing_lib.make_source(
        train,
        heldout,
        options,
        manifest=manifest,
        vocab_size=facts["vocab_size"],
        special=tuple(facts["special"]) if facts.get("special") else None,
        fingerprint={
            "source": "files",
            "files": corpus.find_digests(manifest),
            "heldout": heldout_fraction if heldout_path is None else "files",
            "sequence_length": sequence_length,
            "packing": packing,
            "documents": options.masked,
            "loss": loss,
            "tokenizer": tokenizing.digest_of(facts),
            "end_token": end_token,
            "fields": [*fields],
            **{key: facts[key] for key in ("template",) if key in facts},
        },
    )

  weights = _parse_weights(path)
  if weights is None:
    return make(path)
  if heldout_path is not None:
    raise ValueError("A mixture takes heldout_fraction, not heldout_path.")
  return mixture.make_mixture({name: make(name) for name in weights}, [*weights.values()])


def find_files(pattern: str) -> list[tuple[str, pathlib.Path]]:
  """Returns the data at a path or pattern, with names relative to its root.

  Of a folder: its files of tokens; or else its records; or else all its files,
  as texts. What is left out is logged.

  Raises `base.MissingFileError` if there is none.
  """
  given, pattern = pattern, os.path.expanduser(pattern)
  root = pathlib.Path(pattern)
  if documents_lib.is_hub_dataset(root):
    return [(root.name, root)]
  if root.is_dir():
    every, left_out = list_files(root)
    found = every = [p for p in every if p.suffix != ".idx"]
    others: list[pathlib.Path] = []  # Than the first kind that there is.
    for is_kind in (lambda p: p.suffix in _TOKENS, documents_lib.is_records):
      if chosen := [p for p in every if is_kind(p)]:
        found = chosen
        others = [p for p in every if not is_kind(p) and p.name != tokenizing.FACTS]
        break
    if others:
      left_out = [
          f"{len(others)} files of other kinds than {found[0].name}, as "
          f"{others[0].relative_to(root)} (a pattern such as "
          f"'{root}/*{others[0].suffix}' reads them)",
          *left_out,
      ]
  else:
    matches = [pattern] if root.is_file() else glob.glob(pattern, recursive=True)
    every = [pathlib.Path(p) for p in sorted(matches)]
    every = [p for p in every if p.is_file() or documents_lib.is_hub_dataset(p)]
    found = drop_repeated(every)
    left_out = [f"{path} (links to the rest)" for path in every if path not in {*found}]
    while glob.has_magic(str(root)) or not root.is_dir():
      root = root.parent
  if not found:
    folder, name = os.path.split(pattern)
    if os.path.isdir(pattern):
      hint = ": that folder has no files."
    elif os.path.isdir(folder or "."):
      hint = base.hint_at(name, os.listdir(folder or "."))
    else:
      hint = f"; there is no folder {folder!r}."
    raise base.MissingFileError(f"No file matches {given!r}{hint}", given)
  warn_of(given, left_out)
  return [(path.relative_to(root).as_posix(), path) for path in found]


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


def read_texts(pattern: str) -> tuple[corpus.CorpusDocument, ...]:
  """Returns the files of `find_files` as texts in memory, without byte order marks.

  Raises `base.DataError` if a file cannot be read or is not UTF-8.
  """
  found = find_files(pattern)
  documents = [
      corpus.CorpusDocument(name, "".join(documents_lib.read_text(str(path))).encode())
      for name, path in found
  ]
  if not any(document.content for document in documents):
    raise base.DataError(f"There is no text: {found[0][1]} is empty.")
  return tuple(documents)


def _parse_weights(text: str) -> dict[str, float] | None:
  """Returns the weights of "0.7 web 0.3 code" by path; None for one path."""
  try:
    words = shlex.split(text)
    weights = [float(word) for word in words[::2]]
  except ValueError:  # Also of a quotation mark in one path.
    return None
  if len(words) < 2 or os.path.exists(text):
    return None
  if len(words) % 2 or len({*words[1::2]}) < len(weights):
    raise ValueError(
        "A mixture must have a weight before each path, and each path once, as "
        f"'0.7 web/*.bin 0.3 code', got {text!r}."
    )
  return dict(zip(words[1::2], weights, strict=True))


def _tokenize(
    task: tokenizing.TokenizingTask, cache_dir: base.StrPath | None
) -> list[tuple[str, pathlib.Path]]:
  """Returns the files of tokens of texts."""
  base.refuse_url("cache_dir", cache_dir or "")
  advice = "with config.data.options.cache_dir."
  if not (root := cache_dir or base.find_cache("tokens")):  # As in containers.
    raise base.DataError(
        f"Cannot keep tokens of texts: there is no home directory. Name a folder {advice}"
    )
  facts = json.dumps(task.facts, sort_keys=True)
  out = pathlib.Path(root, hashlib.sha256(facts.encode()).hexdigest()[:24])
  try:
    for done in tokenizing.run(task, out, num_workers=0, waits=True):
      if done.num_tokens:
        logging.info(
            "Tokenized %d of %d parts to %s: %d tokens.",
            *(done.num_finished, done.num_parts, out, done.num_tokens),
        )
  except OSError as error:
    place = pathlib.Path(error.filename or out)
    if place not in (out, *out.parents) and out not in place.parents:
      raise base.DataError(f"Cannot read {place}: {error.strerror}.") from error
    raise base.DataError(
        f"Cannot keep tokens of texts in {out}: {error.strerror}. Name another folder {advice}"
    ) from error
  return [(path.name, path) for path in sorted(out.glob("*.bin"))]
