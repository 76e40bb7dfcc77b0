"""A source: samples of training data by index.

It keeps no position, so any node can ask for the data of a step again after a
failure. `batches` groups samples into steps and microbatches.
"""

from collections.abc import Callable, Mapping
import dataclasses
import types
from typing import Any

from bamboo_jax.data import corpus, draws


@dataclasses.dataclass(frozen=True, eq=False)
class Source:
  """Samples by index; thread-safe.

  Attributes:
    fingerprint: Everything that the samples depend on, except the seed. A run
      cannot be resumed with another one.
    num_heldout: Samples for evaluation, which are never trained on.
    batch: `batch(indices, seed=seed)` returns training samples by name, leading
      dimension that of `indices`. Each is a pure function of (seed, index), for
      any indices from 0 in any order. A value may be a function that makes the
      array, so that unused arrays cost nothing.
    heldout_batch: `heldout_batch(indices)` returns held-out samples; `indices`
      are below `num_heldout`.
    samples_per_epoch: Samples until they repeat, in another order; None if they
      never do.
    manifest: The files that were read, if any were.
    vocab_size: Exclusive bound of tokens, or of labels of images; None if the
      samples have neither.
    unit: What its targets are, "tokens" or "samples"; None if it is unknown.
    special: Padding, [CLS], [SEP] and [MASK] if its tokens have them.
    count_epochs: For a mixture, returns the epochs of each of its sources, by
      name, after a number of samples; else None.
  """

  fingerprint: Mapping[str, Any]
  num_heldout: int
  batch: Callable[..., dict[str, Any]]
  heldout_batch: Callable[..., dict[str, Any]]
  samples_per_epoch: int | None = None
  manifest: corpus.Manifest = ()
  vocab_size: int | None = None
  unit: str | None = None
  special: tuple[int, ...] | None = None
  count_epochs: Callable[[int], dict[str, float]] | None = None

  def epochs(self, num_samples: int) -> dict[str, float]:
    """Returns how often each part of the data was seen, by name."""
    if self.count_epochs is not None:
      return self.count_epochs(num_samples)
    if self.samples_per_epoch is None:
      return {}
    return {"data": num_samples / self.samples_per_epoch}


def make_shuffled(
    take: Callable[[list[int]], dict[str, Any]], *, size: int, num_heldout: int, **facts: Any
) -> Source:
  """Returns a source that visits `size` places, in a new order each epoch.

  Args:
    take: Returns the samples at these places; those from `size` are held out.
    **facts: Other fields of the source.
  """
  return Source(
      samples_per_epoch=size,
      num_heldout=num_heldout,
      batch=lambda indices, *, seed: take(draws.shuffle(seed, indices, size=size)),
      heldout_batch=lambda indices: take([size + i for i in indices]),
      **facts,
  )


def check_ranges(
    options: Mapping[str, int],
    *,
    least: Mapping[str, int] = types.MappingProxyType({}),
    most: Mapping[str, int] = types.MappingProxyType({}),
) -> None:
  """Raises `ValueError` for an option below `least`, or else 1, or too high."""
  for name, value in options.items():
    low, high = least.get(name, 1), most.get(name)
    if value < low or (high is not None and value > high):
      bound = "" if high is None else f" and at most {high}"
      raise ValueError(f"{name} must be at least {low}{bound}, got {value}.")


def check_fraction(fraction: float) -> None:
  """Raises `ValueError` unless 0 <= `fraction` < 1."""
  if not 0 <= fraction < 1:
    raise ValueError(f"heldout_fraction must be from 0 to below 1, got {fraction}.")
