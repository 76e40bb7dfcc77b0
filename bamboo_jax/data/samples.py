"""A source: samples of training data by index.

It answers for single samples and keeps no position, so any node can ask for the
data of a step again after a failure. `batches` cuts samples into steps and
microbatches.
"""

from collections.abc import Callable, Mapping
import dataclasses
from typing import Any

from bamboo_jax.data import corpus


@dataclasses.dataclass(frozen=True, eq=False)
class Source:
  """Samples by index; may be called from several threads.

  Attributes:
    fingerprint: All that the samples depend on, beside the seed. A run must not
      go on with another one.
    num_heldout: Samples for evaluation, none of them trained on.
    batch: `batch(indices, seed=seed)` returns training samples by name, leading
      dimension that of `indices`. Each is a pure function of (seed, index), for
      any indices from 0 in any order. A value may be a function that makes the
      array: what nobody asks for costs nothing then.
    heldout_batch: `heldout_batch(indices)` returns held-out samples; `indices`
      are below `num_heldout`.
    samples_per_epoch: Samples until they come again, in another order; None if
      they never do.
    manifest: Which files were read; None if none were.
    vocab_size: All tokens, or labels of images, are below it; None if the
      samples have neither.
    special: Padding, [CLS], [SEP] and [MASK] if its tokens have them.
  """

  fingerprint: Mapping[str, str | int | float]
  num_heldout: int
  batch: Callable[..., dict[str, Any]]
  heldout_batch: Callable[..., dict[str, Any]]
  samples_per_epoch: int | None = None
  manifest: corpus.Manifest | None = None
  vocab_size: int | None = None
  special: tuple[int, ...] | None = None


def check_fraction(fraction: float) -> None:
  """Raises `ValueError` unless this part of the samples can be held out."""
  if not 0 <= fraction < 1:
    raise ValueError(
        f"heldout_fraction must be from 0 to below 1, got {fraction}."
    )
