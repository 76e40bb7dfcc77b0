"""Samples of tokens: spans of files, in a new order each epoch.

  stream  spans of equal length, whatever documents they cut
  whole   whole documents in their order, as many as fit, and padding; longer
          documents are cut

With `masked` a sample also has the array "documents", so that a model can keep
documents apart: numbers that grow from 1, and 0 for padding. Targets are -1,
which losses ignore, at the end of a document, in padding and in prompts.

Dimension key:

  S: samples
  L: sequence length, tokens
"""

import bisect
from collections.abc import Sequence
import dataclasses
import functools
import itertools
from typing import Any, NamedTuple

from absl import logging
import numpy as np

from bamboo_jax import base
from bamboo_jax.data import samples
from bamboo_jax.data.disk import token_files

PACKINGS = ("stream", "whole")
LOSSES = ("all", "completion")


@dataclasses.dataclass(frozen=True)
class PackingOptions:
  """How tokens become samples.

  Attributes:
    packing: One of `PACKINGS`.
    masked: Whether samples tell documents apart.
    loss: Tokens to learn: one of `LOSSES`.
  """

  sequence_length: int
  packing: str = "stream"
  masked: bool = False
  loss: str = "all"

  def __post_init__(self) -> None:
    samples.check_ranges({"sequence_length": self.sequence_length})
    for name, allowed in (("packing", PACKINGS), ("loss", LOSSES)):
      if getattr(self, name) not in allowed:
        raise ValueError(base.suggest(getattr(self, name), allowed, what=name))

  @property
  def is_apart(self) -> bool:
    """Whether no target belongs to the next document."""
    return self.masked or self.packing == "whole"


class Spans(NamedTuple):
  """The spans of one file, each with the tokens of a sample.

  `starts` are their first tokens, and the end.
  """

  file: token_files.TokenFile
  starts: Sequence[int] | np.ndarray

  @property
  def num_spans(self) -> int:
    """Number of samples."""
    return len(self.starts) - 1

  def find(self, places: np.ndarray) -> np.ndarray:
    """Returns the span of each token, by number; `num_spans` after the last."""
    return np.searchsorted(self.starts, places, side="right") - 1


def make_source(
    files: Sequence[token_files.TokenFile],
    heldout: Sequence[token_files.TokenFile] | float,
    options: PackingOptions,
    **facts: Any,
) -> samples.Source:
  """Returns a source of samples "inputs" and "targets", int32 [S, L] each.

  Args:
    files: The training tokens.
    heldout: Files for evaluation, in order; or the share of spans, the last
      ones, that are held out.
    **facts: Other fields of the source.

  Raises:
    base.DataError: There is not one sample, or a file lacks documents.
  """
  parts = [_find_spans(file, options) for file in files]
  total = sum(part.num_spans for part in parts)
  others: list[Spans] = []
  if isinstance(heldout, float | int):
    # At least one, so that what little data there is can be evaluated.
    num_heldout = min(max(1, int(total * heldout)), total - 1) if heldout and total else 0
    total -= num_heldout
  else:
    others = [_find_spans(file, options) for file in heldout]
    num_heldout = sum(part.num_spans for part in others)
    _check_length("held-out", others, options, num_heldout if heldout else 1)
  _check_length("training", parts, options, total)
  if options.loss == "completion":
    _report_targets([*parts, *others], options)
  cut = functools.partial(_cut, [*parts, *others], options)
  return samples.make_shuffled(cut, size=total, num_heldout=num_heldout, unit="tokens", **facts)


def _cut(
    parts: Sequence[Spans], options: PackingOptions, numbers: Sequence[int]
) -> dict[str, np.ndarray]:
  """Returns the samples with these numbers, over all files."""
  firsts = [*itertools.accumulate((part.num_spans for part in parts), initial=0)]
  shape = (len(numbers), options.sequence_length)
  arrays = {"inputs": np.zeros(shape, np.int32), "targets": np.full(shape, -1, np.int32)}
  if options.masked:
    arrays["documents"] = np.zeros(shape, np.int32)
  for row, number in enumerate(numbers):
    at = bisect.bisect_right(firsts, number) - 1
    start, stop = map(int, parts[at].starts[number - firsts[at] :][:2])
    file, length = parts[at].file, stop - start
    tokens, targets = file.read(start, min(stop + 1, file.num_tokens)), arrays["targets"][row]
    arrays["inputs"][row, :length] = tokens[:length]
    targets[: len(tokens) - 1] = tokens[1:]
    if not options.is_apart and options.loss == "all":
      continue
    starts, prompts = file.documents(start, start + len(tokens))
    if options.is_apart:
      # A sample has few documents: a loop is faster than calls of numpy.
      places = [*(starts - start).tolist(), length]
      for document, (first, last) in enumerate(itertools.pairwise(places), 1):
        if first > 0:
          targets[first - 1] = -1
        if options.masked:
          arrays["documents"][row, max(first, 0) : last] = document
    if options.loss == "completion":
      for first, last in (prompts - start).tolist():
        targets[max(first - 1, 0) : max(last - 1, 0)] = -1
  return arrays


def _find_spans(file: token_files.TokenFile, options: PackingOptions) -> Spans:
  length = options.sequence_length
  if options.is_apart:
    file.documents(0, 1)  # Raises an error if it cannot.
  if options.loss == "completion" and not file.has_prompts:
    raise base.DataError(
        f"{file.name} has no prompts, which loss='completion' needs: each "
        "document in its .idx must have two sequences, or an even number, by turns a prompt and "
        "what is learned."
    )
  if options.packing == "stream":  # Each needs one token more.
    return Spans(file, range(0, max(file.num_tokens, 1), length))
  return Spans(file, _pack(file, length))


def _pack(file: token_files.TokenFile, length: int) -> np.ndarray:
  """Returns the first token of each sample of whole documents, and the end.

  Each takes as many of the next documents as fit. No sample reaches over a
  block of documents, so that the memory is that of one, and of the result.
  """
  found, begin = [np.zeros(1, np.int64)], 0
  for ends in file.iter_ends():
    ends = ends[ends > begin].astype(np.int64)
    if not len(ends):
      continue
    lengths = np.diff(ends, prepend=begin)
    # Cut long documents: all parts but the last have `length` tokens.
    num_parts = -(-lengths // length)
    firsts = np.repeat(ends - lengths, num_parts)
    offsets = np.arange(len(firsts)) - np.repeat(np.cumsum(num_parts) - num_parts, num_parts)
    cuts = np.append(firsts + offsets * length, ends[-1])
    after = (np.searchsorted(cuts, cuts + length, side="right") - 1).data
    at, taken = 0, []
    while at < len(cuts) - 1:
      at = after[at]
      taken.append(at)
    found.append(cuts[taken])
    begin = int(ends[-1])
  return np.concatenate(found)


def _report_targets(parts: Sequence[Spans], options: PackingOptions) -> None:
  """Logs how many samples have no token to learn, if any.

  Raises `base.DataError` if none has one.
  """
  length = options.sequence_length
  num_samples = sum(part.num_spans for part in parts)
  num_prompts = num_long = num_useful = 0
  for part in parts:
    starts, prompts, ends = part.file.prompts()
    num_prompts += len(starts)
    num_long += int((prompts - starts > length).sum())
    # Where inputs are whose targets are learned: `begin` up to `ends - 2`.
    begin = np.maximum(prompts - 1, starts if options.is_apart else 0)
    is_learned = begin < ends - 1
    first = part.find(begin[is_learned])
    last = np.minimum(part.find(ends[is_learned] - 2), part.num_spans - 1)
    before = np.maximum.accumulate(np.append(-1, last))
    new = last - np.maximum(first, before[:-1] + 1) + 1
    num_useful += int(np.maximum(new, 0).sum())
  counts = (
      f"{num_samples - num_useful} of {num_samples} samples have no token to "
      f"learn; {num_long} of {num_prompts} prompts have more than "
      f"sequence_length={length} tokens"
  )
  if not num_useful:
    raise base.DataError(f"{parts[0].file.name}: {counts}.")
  if num_useful < num_samples:
    logging.warning("%s: %s.", parts[0].file.name, counts)


def _check_length(what: str, parts: Sequence[Spans], options: PackingOptions, count: int) -> None:
  if count < 1:
    num_tokens = sum(part.file.num_tokens for part in parts)
    raise base.DataError(
        f"The {what} text is too short: it has {num_tokens} tokens and no sample of "
        f"sequence_length={options.sequence_length}, which needs one more. Use "
        "more text, a shorter sequence or another heldout_fraction."
    )
