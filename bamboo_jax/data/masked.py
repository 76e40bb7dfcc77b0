"""Samples for BERT: masked tokens to find in pairs of texts.

Devlin et al., 2019, appendix A.1 and A.2: a sample is `[CLS] A [SEP] B [SEP]`.
In half of them B goes on where A ends, else it is of another sample. Of 15 % of
the tokens, 80 % are masked, 10 % replaced by random ones, and 10 % kept. One
sample in ten is short, and padded. All that is drawn depends on (seed, index).

Dimension key:
  S: samples
  L: sequence length, tokens
  M: masked tokens of a sample
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
from typing import Any, ClassVar

import numpy as np

from bamboo_jax.data import corpus
from bamboo_jax.data import draws

NUM_SPECIAL = 4  # Padding, [CLS], [SEP] and [MASK].
NUM_AROUND = 3  # [CLS] and two [SEP] in each sample.
_TRAIN, _HELDOUT = 3, 4  # Streams of random bits.


@dataclasses.dataclass(frozen=True, eq=False)
class MaskedPairs:
  """A `source.Source` of pairs of pieces of samples of another one.

  Attributes:
    tokens: A `source.Source` with "inputs" [S, L - `NUM_AROUND`].
    num_masked: M, the most that are masked.
  """

  tokens: Any
  num_masked: int

  best_loss: ClassVar[None] = None

  def __post_init__(self) -> None:
    if self.num_masked < 1:
      raise ValueError(f"num_masked must be at least 1, got {self.num_masked}.")

  @property
  def vocab_size(self) -> int:
    """Number of tokens, special ones included."""
    return max(self.tokens.vocab_size, max(self._special) + 1)

  @property
  def _special(self) -> tuple[int, ...]:
    """Padding, [CLS], [SEP] and [MASK]; behind all others if none are given."""
    size = self.tokens.vocab_size
    given = getattr(self.tokens, "special", None)
    return given or tuple(range(size, size + NUM_SPECIAL))

  @property
  def samples_per_epoch(self) -> int | None:
    """That of the tokens; pairs and masks are others in each epoch."""
    return self.tokens.samples_per_epoch

  @property
  def num_heldout(self) -> int:
    """Number of held-out samples."""
    return self.tokens.num_heldout

  @property
  def manifest(self) -> corpus.Manifest | None:
    """That of the tokens."""
    return self.tokens.manifest

  @property
  def fingerprint(self) -> Mapping[str, str | int | float]:
    """All that the samples depend on, beside the seed."""
    return {**self.tokens.fingerprint, "num_masked": self.num_masked}

  def batch(
      self, indices: Sequence[int], *, seed: int
  ) -> dict[str, np.ndarray]:
    """Returns what `models.text.bert.make_bert` reads."""
    read = functools.partial(self.tokens.batch, seed=seed)
    size = self.samples_per_epoch or 1 << 32
    return self._make(indices, read, size, seed=seed, stream=_TRAIN)

  def heldout_batch(self, indices: Sequence[int]) -> dict[str, np.ndarray]:
    """Returns held-out samples, the same for every seed."""
    read, size = self.tokens.heldout_batch, self.num_heldout
    return self._make(indices, read, size, seed=0, stream=_HELDOUT)

  def _make(
      self,
      indices: Sequence[int],
      read: Callable[[Sequence[int]], Mapping[str, np.ndarray]],
      num_others: int,
      *,
      seed: int,
      stream: int,
  ) -> dict[str, np.ndarray]:
    own = read(indices)["inputs"]
    count = 5 + 3 * (own.shape[1] + NUM_AROUND)
    bits = [
        draws.raw_bits(seed, i, count=count, stream=stream) for i in indices
    ]
    other = read([int(b[0] >> 32) % num_others for b in bits])["inputs"]
    samples = [
        self._make_one(*texts, drawn[1:])
        for *texts, drawn in zip(own, other, bits, strict=True)
    ]
    return {
        key: np.stack([sample[key] for sample in samples]).astype(np.int32)
        for key in samples[0]
    }

  def _make_one(
      self, own: np.ndarray, other: np.ndarray, bits: np.ndarray
  ) -> dict[str, np.ndarray]:
    pad, cls, sep, mask = self._special
    length, size = len(own), len(own) + NUM_AROUND
    is_random, is_short, short, split = (int(b >> 32) for b in bits[:4])
    is_random %= 2
    num_text = 2 + short % (length - 1) if is_short % 10 == 0 else length
    num_first = 1 + split % (num_text - 1)
    second = (other if is_random else own)[num_first:num_text]
    text = [[cls], own[:num_first], [sep], second, [sep]]
    inputs = np.full(size, pad)
    inputs[: num_text + NUM_AROUND] = np.concatenate(text)
    place_L = np.arange(size)
    is_text = place_L < num_text + NUM_AROUND
    order, kind, drawn = bits[4:].reshape(3, size)
    is_word = is_text & ~np.isin(inputs, self._special)
    num_masked = min(self.num_masked, max(1, round(0.15 * num_text)))
    chosen = np.argsort(np.where(is_word, order >> 1, 2**63), kind="stable")
    places = np.zeros(self.num_masked, np.int64)
    targets = np.full(self.num_masked, -1)
    places[:num_masked] = chosen = np.sort(chosen[:num_masked])
    targets[:num_masked] = inputs[chosen]
    tenth = (kind[chosen] >> 32) % 10
    random = (drawn[chosen] >> 32) % self.tokens.vocab_size
    changed = np.where(tenth < 8, mask, random)
    inputs[chosen] = np.where(tenth < 9, changed, inputs[chosen])
    return {
        "inputs": inputs,
        "segments": is_text & (place_L > num_first + 1),
        "is_text": is_text,
        "places": places,
        "targets": targets,
        "is_random": np.array(is_random),
    }
