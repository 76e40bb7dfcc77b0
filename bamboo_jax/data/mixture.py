"""Mixtures of sources by weights.

Of each block of `_BLOCK` samples every source has a fixed number, in random
places. So the source of a sample, and its index there, are a function of (seed,
index), and after any number of samples the shares are those of the weights.
"""

from collections.abc import Mapping, Sequence
import functools
from typing import Any

import numpy as np

from bamboo_jax import base
from bamboo_jax.data import draws, samples

_BLOCK = 1 << 14  # Samples; weights are rounded to multiples of its inverse.
_FIRST = 1 << 40  # Orders of blocks; no source has as many epochs.


def make_mixture(sources: Mapping[str, samples.Source], weights: Sequence[float]) -> samples.Source:
  """Returns samples of all sources, in proportion to `weights`.

  Held-out samples are taken from the sources in turn, the same number of each.

  Raises:
    ValueError: A weight is negative or too small, or all are 0.
  """
  counts = split_block(dict(zip(sources, weights, strict=True)))
  parts = [*sources.values()]
  evaluated = [part for part in parts if part.num_heldout]
  least = min((part.num_heldout for part in evaluated), default=0)

  table = functools.lru_cache(maxsize=4)(functools.partial(_draw_block, tuple(counts)))

  def place(seed: int, index: int) -> tuple[int, int]:
    block, at = divmod(index, _BLOCK)
    part, number = (int(column[at]) for column in table(seed, block))
    return part, block * counts[part] + number

  def batch(indices: Sequence[int], *, seed: int) -> dict[str, Any]:
    places = [place(seed, index) for index in indices]
    return _join([parts[part].batch([own], seed=seed) for part, own in places])

  def heldout_batch(indices: Sequence[int]) -> dict[str, Any]:
    places = [divmod(index, len(evaluated)) for index in indices]
    return _join([evaluated[part].heldout_batch([own]) for own, part in places])

  def count_epochs(num_samples: int) -> dict[str, float]:
    shares = [num_samples * count / _BLOCK for count in counts]
    return {
        name: share / part.samples_per_epoch
        for (name, part), share in zip(sources.items(), shares, strict=True)
        if part.samples_per_epoch
    }

  sizes = [p.vocab_size for p in parts if p.vocab_size is not None]
  return samples.Source(
      fingerprint={
          "source": "mixture",
          "samples_of_block": dict(zip(sources, counts, strict=True)),
          "sources": {name: p.fingerprint for name, p in sources.items()},
      },
      num_heldout=least * len(evaluated),
      batch=batch,
      heldout_batch=heldout_batch,
      manifest=tuple(entry for part in parts for entry in part.manifest),
      vocab_size=max(sizes) if len(sizes) == len(parts) else None,
      unit=parts[0].unit,
      count_epochs=count_epochs,
  )


def _draw_block(counts: Sequence[int], seed: int, block: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns the source of each sample in a block, and its index there."""
  slots = draws.permute(seed, _FIRST + block, np.arange(_BLOCK), size=_BLOCK)
  parts_B = np.searchsorted(np.cumsum(counts), slots, side="right")
  numbers_B = np.zeros(_BLOCK, np.int64)
  for part, count in enumerate(counts):
    numbers_B[parts_B == part] = np.arange(count)
  return parts_B, numbers_B


def split_block(weights: Mapping[str, float]) -> list[int]:
  """Returns the samples of each source in a block, by the largest remainder."""
  total = sum(weights.values())
  for name, weight in weights.items():
    if not 0 <= weight < float("inf"):
      raise ValueError(f"The weight of {name} must be at least 0, got {weight}.")
  if not total > 0:
    raise ValueError(f"The weights of a mixture must not all be 0: {weights}.")
  exact = np.array([*weights.values()]) / total * _BLOCK
  counts = np.floor(exact).astype(int)
  order = np.argsort(counts - exact, kind="stable")
  counts[order[: _BLOCK - counts.sum()]] += 1
  for (name, weight), count in zip(weights.items(), counts, strict=True):
    if weight and not count:
      raise ValueError(
          f"The weight of {name} is too small: {weight} of {total}, must be at "
          f"least 1 / {_BLOCK}. Use 0, or fewer sources."
      )
  return [int(count) for count in counts]


def _join(rows: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
  """Returns samples of one each as one batch."""
  arrays = [{n: a() if callable(a) else a for n, a in row.items()} for row in rows]
  shapes = [{name: array.shape for name, array in row.items()} for row in arrays]
  for other in shapes:
    if other != shapes[0]:
      raise base.DataError(
          f"Sources of a mixture must have the same arrays, got {other} and {shapes[0]}."
      )
  return {name: np.concatenate([row[name] for row in arrays]) for name in arrays[0]}
