"""A source: samples of training data by index; that of arrays in memory, and of records.

It keeps no position, so any node can ask for the data of a step again after a
failure. `batches` groups samples into steps and microbatches.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import hashlib
import json
import types
from typing import Any

import numpy as np

from bamboo_jax import base
from bamboo_jax.data import corpus, draws

_NUM_SAMPLED = 16  # Records in the fingerprint of a source of records.
_TOKENS = ("inputs", "targets")  # Arrays that models of the package take for tokens.


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


def from_arrays(arrays: Mapping[str, np.ndarray], *, heldout_fraction: float = 0.0) -> Source:
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
  made = _make(take, min(sizes.values()), heldout_fraction, facts)
  tokens = [a for n, a in arrays.items() if n in _TOKENS and a.dtype.kind in "iu" and a.size]
  # JAX takes a token beyond the end of a table for its last one, without an error.
  bound = max((int(array.max()) + 1 for array in tokens), default=None)
  return dataclasses.replace(made, vocab_size=bound)


def from_records(records: Sequence[Mapping[str, Any]], *, heldout_fraction: float = 0.02) -> Source:
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
) -> Source:
  check_fraction(heldout_fraction)
  num_heldout = int(total * heldout_fraction)
  return make_shuffled(
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
