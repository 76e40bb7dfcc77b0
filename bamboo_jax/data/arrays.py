"""Samples from arrays in memory, for the user's own code."""

from collections.abc import Mapping, Sequence
import hashlib
import json

import numpy as np

from bamboo_jax import base
from bamboo_jax.data import draws
from bamboo_jax.data import samples


def from_arrays(
    arrays: Mapping[str, np.ndarray], *, heldout_fraction: float = 0.0
) -> samples.Source:
  """Returns a source of the samples `arrays[name][i]`.

  Each epoch visits all training samples once, in an order of its own. The
  arrays are read once for a digest: a run cannot be resumed with other arrays.

  Args:
    arrays: By the names that the model reads; each is [samples, ...].
    heldout_fraction: Share of the samples, the last ones, for evaluation.

  Raises:
    base.DataError: There are no samples, or arrays differ in their number.
  """
  samples.check_fraction(heldout_fraction)
  arrays = {name: np.asarray(array) for name, array in arrays.items()}
  kinds = {name: _find_kind(name, array) for name, array in arrays.items()}
  sizes = {n: len(a) if a.ndim else 0 for n, a in arrays.items()}
  if len({*sizes.values()}) != 1 or not min(sizes.values()):
    raise base.DataError(
        "Each array of a data source must be [samples, ...], all with the same "
        f"number of samples and at least one; got {sizes}."
    )
  total = min(sizes.values())
  num_heldout = int(total * heldout_fraction)
  size = total - num_heldout

  def take(places: Sequence[int]) -> dict[str, np.ndarray]:
    places = list(places)
    return {n: a[places].astype(kinds[n]) for n, a in arrays.items()}

  return samples.Source(
      fingerprint={
          "source": "arrays",
          "sha256": _hash(arrays),
          "heldout_fraction": heldout_fraction,
      },
      num_heldout=num_heldout,
      samples_per_epoch=size,
      batch=lambda indices, *, seed: take(
          draws.shuffle(seed, indices, size=size)
      ),
      heldout_batch=lambda indices: take([size + i for i in indices]),
  )


def _find_kind(name: str, array: np.ndarray) -> np.dtype:
  """Returns the dtype of samples; JAX has no 64-bit types by default."""
  if array.dtype.kind not in "biuf":
    raise base.DataError(
        f"Array {name!r} of a data source must hold numbers, got {array.dtype}."
    )
  if array.dtype.itemsize < 8:
    return array.dtype
  kind = np.dtype(f"{array.dtype.kind}4")
  if kind.kind != "f" and array.size:
    info = np.iinfo(kind)
    if array.min() < info.min or array.max() > info.max:
      raise base.DataError(
          f"Array {name!r} has values from {array.min()} to {array.max()}, "
          f"which do not fit {kind}."
      )
  return kind


def _hash(arrays: Mapping[str, np.ndarray]) -> str:
  digest = hashlib.sha256()
  for name, array in sorted(arrays.items()):
    digest.update(json.dumps([name, str(array.dtype), array.shape]).encode())
    for sample in array:  # A memory-mapped array is never copied whole.
      digest.update(np.ascontiguousarray(sample).data)
  return digest.hexdigest()
