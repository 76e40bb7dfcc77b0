"""Samples for translation: pairs of a source and a target sentence.

Pairs come from files with two columns, from two files with a sentence on each
line, such as those of WMT16, or from the standard library: names of functions
and classes with their docstrings. A sentence ends with token 0.

Dimension key:

  S: samples
  L: sequence length, tokens
"""

from collections.abc import Sequence
import functools
import re
from typing import Any

from absl import logging
import numpy as np

from bamboo_jax import base
from bamboo_jax.data import corpus, samples, source as source_lib, vocabularies
from bamboo_jax.data.disk import files

Pair = tuple[bytes, bytes]

_END = 0
_DOCSTRING = re.compile(rb'^ *(?:def|class) (\w+)[^\n]*:\n +[rR]?"""([^\n"\\\t]+)', re.MULTILINE)


def make_translation(
    *,
    sequence_length: int,
    pattern: str | None = None,
    source: str | None = None,
    target: str | None = None,
    vocab_size: int | None = None,
    tokenizer: str | None = None,
    heldout_fraction: float = 0.02,
) -> samples.Source:
  """Returns pairs of sentences for translation.

  By default names of functions and classes of the standard library, with the
  first lines of their docstrings, which needs no download.

  Args:
    pattern: Matches files with two columns separated by a tab.
    source: Matches files with a sentence on each line, as "wmt16/train*.en".
    target: The same of the other language; files are paired in sorted order.
    vocab_size, tokenizer: As of the source `files`.
    heldout_fraction: Share of the pairs, the last ones, for evaluation.
  """
  samples.check_fraction(heldout_fraction)
  if (source is None) != (target is None) or (pattern and source):
    raise ValueError(
        "translation takes the option 'pattern', or both 'source' and "
        f"'target', got {pattern=}, {source=}, {target=}."
    )
  if source is not None and target is not None:
    sides = [files.read_texts(source), files.read_texts(target)]
    documents, pairs = sides[0] + sides[1], join_lines(*sides)
  elif pattern is not None:
    documents = files.read_texts(pattern)
    pairs = split_columns(documents)
  else:
    documents = corpus.read_stdlib()
    pairs = find_docstrings(documents)
  vocabulary = vocabularies.read_vocabulary(tokenizer, vocab_size)
  return make_pairs(
      pairs,
      vocabulary=vocabulary,
      sequence_length=sequence_length,
      heldout_fraction=heldout_fraction,
      **source_lib.describe_text(
          "translation", *(documents, vocabulary, sequence_length, heldout_fraction)
      ),
  )


def make_pairs(
    pairs: Sequence[Pair],
    *,
    vocabulary: vocabularies.Vocabulary,
    sequence_length: int,
    heldout_fraction: float,
    **facts: Any,
) -> samples.Source:
  """Returns a source of "source", "inputs" and "targets", int32 [S, L] each.

  "inputs" are the target sentence after a 0; "targets" are padded with -1,
  which the loss ignores. The last pairs are held out; pairs with a sentence of
  more than `sequence_length` tokens, its end included, are dropped. `facts` are
  other fields of the source.

  Raises:
    base.DataError: No pair is short enough.
  """
  columns, lengths = [], []
  for column in zip(*pairs, strict=True):
    tokens = _encode(vocabulary, column)
    ends = np.flatnonzero(tokens == _END) + 1
    starts = np.concatenate([[0], ends[:-1]])
    columns.append((tokens, starts))
    lengths.append(ends - starts)
  kept = np.flatnonzero(np.maximum(*lengths) <= sequence_length)
  if not len(kept):
    raise base.DataError(
        f"All {len(pairs)} pairs have a sentence that is too long for "
        f"sequence_length={sequence_length}."
    )
  if len(kept) < len(pairs):
    logging.info(
        "Dropped %d of %d pairs, with sentences of %d tokens or more.",
        *(len(pairs) - len(kept), len(pairs), sequence_length),
    )
  filled = [
      _fill(tokens, starts[kept], length[kept], sequence_length)
      for (tokens, starts), length in zip(columns, lengths, strict=True)
  ]
  cut = len(kept) - int(len(kept) * heldout_fraction)
  return samples.make_shuffled(
      functools.partial(_select, filled),
      size=cut,
      num_heldout=len(kept) - cut,
      vocab_size=vocabulary.vocab_size,
      unit="tokens",
      **facts,
  )


def split_columns(documents: Sequence[corpus.CorpusDocument]) -> list[Pair]:
  """Returns the pairs of lines with two columns separated by a tab.

  Raises:
    base.DataError: A line has another number of columns, or an empty one.
  """
  pairs = []
  for document in documents:
    for number, line in enumerate(_lines(document), start=1):
      columns = line.split(b"\t")
      if len(columns) != 2 or not all(c.strip() for c in columns):
        full = sum(bool(c.strip()) for c in columns)
        raise base.DataError(
            f"Line {number} of {document.name} must have 2 columns with a tab "
            f"between them, but has {len(columns)}, of which {full} with text."
        )
      pairs.append((columns[0].strip(), columns[1].strip()))
  return pairs


def join_lines(
    sources: Sequence[corpus.CorpusDocument], targets: Sequence[corpus.CorpusDocument]
) -> list[Pair]:
  """Returns the pairs of equal lines of two files; drops empty pairs.

  Raises:
    base.DataError: The numbers of files, or of lines of two files, differ.
  """
  names = [[d.name for d in side] for side in (sources, targets)]
  if len(sources) != len(targets):
    raise base.DataError(f"Files do not pair up: {names[0]} and {names[1]}.")
  pairs: list[tuple[bytes, bytes]] = []
  for source, target in zip(sources, targets, strict=True):
    left, right = _lines(source), _lines(target)
    if len(left) != len(right):
      short, other = sorted((source, target), key=lambda d: len(_lines(d)))
      raise base.DataError(
          f"{short.name} ends before line {len(_lines(short)) + 1} of "
          f"{other.name}, which has {len(_lines(other))}."
      )
    pairs += zip(left, right, strict=True)
  return [(a.strip(), b.strip()) for a, b in pairs if a.strip() and b.strip()]


def find_docstrings(documents: Sequence[corpus.CorpusDocument]) -> list[Pair]:
  """Returns names of functions and classes, and their docstrings' first lines.

  Only those whose signature is on one line.
  """
  return [
      (match[1], match[2].strip())
      for document in documents
      for match in _DOCSTRING.finditer(document.content)
      if match[2].strip()
  ]


def _lines(document: corpus.CorpusDocument) -> list[bytes]:
  return document.content.removesuffix(b"\n").split(b"\n")


def _encode(vocabulary: vocabularies.Vocabulary, sentences: Sequence[bytes]) -> np.ndarray:
  """Returns the tokens of sentences, with 0 and the end token swapped."""
  documents = [corpus.CorpusDocument("", text) for text in sentences]
  tokens = vocabularies.encode(vocabulary, documents)
  swapped = np.where(tokens == _END, vocabulary.end, tokens)
  return np.where(tokens == vocabulary.end, _END, swapped).astype(tokens.dtype)


def _fill(tokens: np.ndarray, starts: np.ndarray, lengths: np.ndarray, size: int) -> np.ndarray:
  """Returns the sentences at `starts`, padded, [samples, size]."""
  place_L = np.arange(size)
  places = np.minimum(starts[:, None] + place_L, len(tokens) - 1)
  is_there = place_L < lengths[:, None]
  return np.where(is_there, tokens[places], 0).astype(tokens.dtype)


def _select(columns: Sequence[np.ndarray], places: Sequence[int]) -> dict[str, np.ndarray]:
  source_SL, target_SL = (c[list(places)].astype(np.int32) for c in columns)
  inputs_SL = np.roll(target_SL, 1, axis=1)
  inputs_SL[:, 0] = _END
  ends_SL = (target_SL == _END).cumsum(axis=1)
  return {"source": source_SL, "inputs": inputs_SL, "targets": np.where(ends_SL > 1, -1, target_SL)}
