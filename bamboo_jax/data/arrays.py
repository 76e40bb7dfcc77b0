"""Samples from arrays in memory or from records, for the user's own code."""

from collections.abc import Callable, Mapping, Sequence
import hashlib
import json
from typing import Any

import numpy as np

from bamboo_jax import base
from bamboo_jax.data import samples

_NUM_SAMPLED = 16  # Records in the fingerprint of a source of records.


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
  arrays = {name: np.asarray(array) for name, array in arrays.items()}
  kinds = {name: _find_kind(name, array) for name, array in arrays.items()}
  sizes = {n: len(a) if a.ndim else 0 for n, a in arrays.items()}
  if len({*sizes.values()}) != 1 or not min(sizes.values()):
    raise base.DataError(
        "Each array of a data source must be [samples, ...], all with the same "
        f"number of samples and at least one; got {sizes}."
    )

  def take(places: Sequence[int]) -> dict[str, np.ndarray]:
    places = list(places)
    return {n: a[places].astype(kinds[n]) for n, a in arrays.items()}

  facts = {"source": "arrays", "sha256": _hash(arrays)}
  return _make(take, min(sizes.values()), heldout_fraction, facts)


def from_records(
    records: Sequence[Mapping[str, Any]], *, heldout_fraction: float = 0.02
) -> samples.Source:
  """Returns a source of the records of a random access source of Grain.

  Args:
    records: Returns arrays by name for an index, always the same, and of one
      shape; also a `MapDataset`, whose shuffle is then not needed.
    heldout_fraction: Share of the records, the last ones, for evaluation.

  Raises:
    base.DataError: There are no records.
  """
  if not len(records):
    raise base.DataError("A data source must have at least one record.")

  def take(places: Sequence[int]) -> dict[str, np.ndarray]:
    chosen = [records[place] for place in places]
    for place, record in zip(places, chosen, strict=True):
      shapes = _shapes_of(record)
      if not shapes or shapes != _shapes_of(chosen[0]):
        raise base.DataError(
            f"Record {place} of a data source must be a dict of arrays, with the names and shapes "
            f"of record {places[0]}, got {shapes or type(record).__name__} "
            f"and {_shapes_of(chosen[0])}."
        )
    arrays = {n: np.stack([c[n] for c in chosen]) for n in chosen[0]}
    return {n: a.astype(_find_kind(n, a)) for n, a in arrays.items()}

  # The order of records is part of a run; all of them may be too many to read.
  sampled = np.linspace(0, len(records) - 1, _NUM_SAMPLED).astype(int)
  facts = {
      "source": "records",
      "num_records": len(records),
      "samples_sha256": _hash(take(sampled.tolist())),
  }
  return _make(take, len(records), heldout_fraction, facts)


def _make(
    take: Callable[[Sequence[int]], dict[str, np.ndarray]],
    total: int,
    heldout_fraction: float,
    facts: Mapping[str, Any],
) -> samples.Source:
  samples.check_fraction(heldout_fraction)
  num_heldout = int(total * heldout_fraction)
  return samples.make_shuffled(
      take,
      size=total - num_heldout,
      num_heldout=num_heldout,
      fingerprint={**facts, "heldout_fraction": heldout_fraction},
  )


def _shapes_of(record: Any) -> dict[str, tuple[int, ...]]:
  """Returns the shapes of the arrays of a record, {} if it is none."""
  return {n: np.shape(a) for n, a in record.items()} if isinstance(record, Mapping) else {}


def _find_kind(name: str, array: np.ndarray) -> np.dtype:
  """Returns the dtype of samples; JAX has no 64-bit types by default, and one order of bytes."""
  if array.dtype.kind not in "biuf":
    raise base.DataError(f"Array {name!r} of a data source must hold numbers, got {array.dtype}.")
  if array.dtype.itemsize < 8:
    return array.dtype.newbyteorder("=")
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
