"""Samples for BERT: masked tokens to predict in pairs of texts.

Devlin et al., 2019, appendix A.1 and A.2: a sample is `[CLS] A [SEP] B [SEP]`.
In half of them B follows A in the text, else it is from another sample. Of 15 %
of the tokens, 80 % are masked, 10 % replaced by random ones, and 10 % kept. One
sample in ten is short, and padded. All random choices depend on (seed, index).

Of packed documents, see `disk.packing`, a sample is those of one span, without
pairs and without [CLS].

Dimension key:

  S: samples
  L: sequence length, tokens
  M: masked tokens of a sample
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
from typing import Any

import numpy as np

from bamboo_jax.data import draws, samples

NUM_SPECIAL = 4  # Padding, [CLS], [SEP] and [MASK].
NUM_AROUND = 3  # [CLS] and two [SEP] per sample.
_TRAIN, _HELDOUT = 3, 4  # Streams of random bits.


def make_masked(tokens: samples.Source, num_masked: int, *, packed: bool = False) -> samples.Source:
  """Returns the samples that `models.text.bert.make_model` reads.

  Args:
    tokens: A source with "inputs" [S, L - `NUM_AROUND`]. Without special tokens
      of its own, they are added after its vocabulary.
    num_masked: M, the maximum number of masked tokens.
    packed: Whether samples are packed documents: `tokens` then has "inputs"
      and "documents", each [S, L].
  """
  samples.check_ranges({"num_masked": num_masked})
  if (size := tokens.vocab_size) is None:
    raise ValueError("Masked samples need a source that has a vocab_size.")
  special = tokens.special or tuple(range(size, size + NUM_SPECIAL))
  form = _pack if packed else _pair

  def make_one(own: np.ndarray, other: np.ndarray, bits: np.ndarray) -> dict[str, np.ndarray]:
    sample, num_text = form(special, own, other, bits[1:5])
    inputs = sample["inputs"]
    order, kind, drawn = bits[5 : 5 + 3 * len(inputs)].reshape(3, -1)
    is_word = sample.get("is_text", other > 0) & ~np.isin(inputs, special)
    count = min(num_masked, max(1, round(0.15 * num_text)), is_word.sum())
    chosen = np.argsort(np.where(is_word, order >> 1, 2**63), kind="stable")
    places = np.zeros(num_masked, np.int64)
    targets = np.full(num_masked, -1)
    places[:count] = chosen = np.sort(chosen[:count])
    targets[:count] = inputs[chosen]
    tenth = (kind[chosen] >> 32) % 10
    random = (drawn[chosen] >> 32) % size
    changed = np.where(tenth < 8, special[3], random)
    inputs[chosen] = np.where(tenth < 9, changed, inputs[chosen])
    return {**sample, "places": places, "targets": targets}

  def make(
      indices: Sequence[int],
      read: Callable[[Sequence[int]], Mapping[str, np.ndarray]],
      *,
      num_others: int,
      seed: int,
      stream: int,
  ) -> dict[str, np.ndarray]:
    texts = read(indices)
    own, other = texts["inputs"], texts.get("documents")
    count = 5 + 3 * (own.shape[1] + NUM_AROUND)
    bits = draws.bits_of_samples(seed, indices, count=count, stream=stream)
    if other is None:
      other = read([int(b[0] >> 32) % num_others for b in bits])["inputs"]
    made = [*map(make_one, own, other, bits)]
    return {key: np.stack([sample[key] for sample in made]).astype(np.int32) for key in made[0]}

  return dataclasses.replace(
      tokens,
      vocab_size=max(size, max(special) + 1),
      fingerprint={**tokens.fingerprint, "num_masked": num_masked},
      batch=lambda indices, *, seed: make(
          *(indices, functools.partial(tokens.batch, seed=seed)),
          num_others=tokens.samples_per_epoch or 1 << 32,
          seed=seed,
          stream=_TRAIN,
      ),
      heldout_batch=lambda indices: make(
          *(indices, tokens.heldout_batch), num_others=tokens.num_heldout, seed=0, stream=_HELDOUT
      ),
  )


def _pair(
    special: tuple[int, ...], own: np.ndarray, other: np.ndarray, bits: np.ndarray
) -> tuple[dict[str, np.ndarray], int]:
  """Returns a pair of texts, and its number of tokens of text."""
  pad, cls, sep, _ = special
  length, size = len(own), len(own) + NUM_AROUND
  is_random, is_short, short, split = (int(b >> 32) for b in bits)
  is_random %= 2
  num_text = 2 + short % (length - 1) if is_short % 10 == 0 else length
  num_first = 1 + split % (num_text - 1)
  second = (other if is_random else own)[num_first:num_text]
  text: list[Any] = [[cls], own[:num_first], [sep], second, [sep]]
  inputs = np.full(size, pad)
  inputs[: num_text + NUM_AROUND] = np.concatenate(text)
  place_L = np.arange(size)
  is_text = place_L < num_text + NUM_AROUND
  return {
      "inputs": inputs,
      "segments": is_text & (place_L > num_first + 1),
      "is_text": is_text,
      "is_random": np.array(is_random),
  }, num_text


def _pack(
    special: tuple[int, ...], own: np.ndarray, documents: np.ndarray, bits: np.ndarray
) -> tuple[dict[str, np.ndarray], int]:
  """Returns packed documents, and their number of tokens."""
  del bits
  return {
      "inputs": np.where(documents > 0, own, special[0]),
      "segments": np.zeros_like(own),
      "documents": documents,
  }, int(np.count_nonzero(documents))
