"""Samples of a text: windows of consecutive tokens.

The training text is split into windows of equal length, and each epoch visits
all of them once, in an order of its own. The window of a sample depends only on
(seed, sample index).

Dimension key:

  S: samples
  L: sequence length, tokens
"""

from collections.abc import Sequence
import functools
from typing import Any

import numpy as np

from bamboo_jax import base
from bamboo_jax.data import corpus
from bamboo_jax.data import draws
from bamboo_jax.data import samples


def make_windows(
    train_tokens: np.ndarray,
    heldout_tokens: np.ndarray,
    *,
    sequence_length: int,
    manifest: corpus.Manifest,
    **facts: Any,
) -> samples.Source:
  """Returns "inputs" and "targets" of both texts, int32 [S, L] each.

  Texts are unsigned [tokens]; held-out samples are in the order of the text.
  `facts` are other fields of the source.

  Raises:
    ValueError: `sequence_length` is below 1.
    base.DataError: A text is shorter than one sample.
  """
  if sequence_length < 1:
    raise ValueError(
        f"sequence_length must be at least 1, got {sequence_length}."
    )
  for part, tokens in (
      ("training", train_tokens),
      ("held-out", heldout_tokens),
  ):
    if len(tokens) <= sequence_length and (part == "training" or len(tokens)):
      raise base.DataError(
          f"The {part} text is too short: it has {len(tokens)} tokens, and "
          f"sequence_length={sequence_length} needs {sequence_length + 1}. The "
          f"whole text has {manifest.num_bytes} bytes in "
          f"{len(manifest.entries)} file(s), the last is "
          f"{manifest.entries[-1].name}. Use more text, a shorter sequence or "
          "another heldout_fraction."
      )

  def cut(tokens: np.ndarray, windows: Sequence[int]) -> dict[str, np.ndarray]:
    starts_S = np.asarray(windows, np.int64) * sequence_length
    places_SL = starts_S[:, None] + np.arange(sequence_length)
    return {
        "inputs": tokens[places_SL].astype(np.int32),
        "targets": tokens[places_SL + 1].astype(np.int32),
    }

  size = (len(train_tokens) - 1) // sequence_length
  return samples.Source(
      samples_per_epoch=size,
      num_heldout=max(len(heldout_tokens) - 1, 0) // sequence_length,
      batch=lambda indices, *, seed: cut(
          train_tokens, draws.shuffle(seed, indices, size=size)
      ),
      heldout_batch=functools.partial(cut, heldout_tokens),
      manifest=manifest,
      **facts,
  )
