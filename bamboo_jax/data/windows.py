"""Samples of a text: windows of consecutive tokens.

The training text is cut into windows of equal length, and each epoch visits all
of them once, in an order of its own. Which window a sample is depends on (seed,
sample index) only.

Dimension key:
  S: samples
  L: sequence length, tokens
"""

from collections.abc import Mapping, Sequence
import dataclasses
from typing import ClassVar

import numpy as np

from bamboo_jax import base
from bamboo_jax.data import corpus
from bamboo_jax.data import draws


@dataclasses.dataclass(frozen=True, eq=False)
class TextWindows:
  """Windows of a text as `source.Source`; texts are unsigned [tokens]."""

  train_tokens: np.ndarray
  heldout_tokens: np.ndarray
  sequence_length: int
  vocab_size: int
  manifest: corpus.Manifest
  fingerprint: Mapping[str, str | int | float]
  special: tuple[int, ...] | None = None  # As in `tokens.Tokens`.

  best_loss: ClassVar[None] = None  # Nobody knows the entropy of a text.

  def __post_init__(self) -> None:
    length = self.sequence_length
    if length < 1:
      raise ValueError(f"sequence_length must be at least 1, got {length}.")
    for part, tokens in (
        ("training", self.train_tokens),
        ("held-out", self.heldout_tokens),
    ):
      if len(tokens) <= length and (part == "training" or len(tokens)):
        last = self.manifest.entries[-1].name
        raise base.DataError(
            f"The {part} text is too short: it has {len(tokens)} tokens, and "
            f"sequence_length={length} needs {length + 1}. The whole text has "
            f"{self.manifest.num_bytes} bytes in "
            f"{len(self.manifest.entries)} file(s), the last is {last}. Use "
            "more text, a shorter sequence or another heldout_fraction."
        )

  @property
  def samples_per_epoch(self) -> int:
    """Number of windows of the training text."""
    return (len(self.train_tokens) - 1) // self.sequence_length

  @property
  def num_heldout(self) -> int:
    """Number of windows of the held-out text."""
    return max(len(self.heldout_tokens) - 1, 0) // self.sequence_length

  def batch(
      self, indices: Sequence[int], *, seed: int
  ) -> dict[str, np.ndarray]:
    """Returns "inputs" and "targets", int32 [S, L] each."""
    size = self.samples_per_epoch
    windows = [
        draws.permutation(seed, epoch, size=size)[place]
        for epoch, place in (divmod(index, size) for index in indices)
    ]
    return self._cut(self.train_tokens, windows)

  def heldout_batch(self, indices: Sequence[int]) -> dict[str, np.ndarray]:
    """Returns "inputs" and "targets", in the order of the text."""
    return self._cut(self.heldout_tokens, indices)

  def _cut(
      self, tokens: np.ndarray, windows: Sequence[int]
  ) -> dict[str, np.ndarray]:
    starts_S = np.asarray(windows, np.int64) * self.sequence_length
    places_SL = starts_S[:, None] + np.arange(self.sequence_length)
    return {
        "inputs": tokens[places_SL].astype(np.int32),
        "targets": tokens[places_SL + 1].astype(np.int32),
    }
