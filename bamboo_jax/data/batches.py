"""Groups the samples of a source into steps and microbatches.

Sample `step * batch_size + i` is the `i`-th of its step; a step's samples are
assigned to its microbatches in order. So a microbatch depends only on (seed,
step, microbatch), not on the number of pipelines or on the node.
"""

from collections.abc import Collection
import dataclasses
import operator
from typing import Any

import numpy as np

from bamboo_jax import base
from bamboo_jax.data import draws
from bamboo_jax.data import samples


@dataclasses.dataclass(frozen=True)
class Batches:
  """The batches of a run: pure functions; arrays are read-only."""

  source: samples.Source
  seed: int
  num_microbatches: int
  microbatch_size: int

  def __post_init__(self) -> None:
    if not 0 <= self.seed <= draws.MAX_SEED:
      raise ValueError(f"seed must be from 0 to 2**63 - 1, got {self.seed}.")
    names = ("num_microbatches", "microbatch_size")
    samples.check_ranges({name: getattr(self, name) for name in names})

  @property
  def batch_size(self) -> int:
    """Samples of a step."""
    return self.num_microbatches * self.microbatch_size

  @property
  def num_eval_batches(self) -> int:
    """Number of whole batches of held-out samples; may be 0."""
    return self.source.num_heldout // self.batch_size

  def check(self, step: int, microbatch: int) -> None:
    """Raises `ValueError` if an index is out of range."""
    options = {"step": step, "microbatch": microbatch}
    samples.check_ranges(options, least=dict.fromkeys(options, 0))
    if microbatch >= self.num_microbatches:
      raise ValueError(
          f"microbatch must be below num_microbatches={self.num_microbatches}, "
          f"got {microbatch}."
      )

  def microbatch(
      self, step: int, microbatch: int, keys: Collection[str] | None = None
  ) -> dict[str, np.ndarray]:
    """Returns the samples of a microbatch: [microbatch_size, ...] by name.

    `keys` selects arrays, None takes all. Raises `ValueError` for an index out
    of range or an unknown key.
    """
    return select_arrays(self.lazy_microbatch(step, microbatch), keys)

  def lazy_microbatch(self, step: int, microbatch: int) -> dict[str, Any]:
    """Returns all arrays of a microbatch, for `select_arrays`."""
    indices = self._indices(step, microbatch)
    return self.source.batch(indices, seed=self.seed)

  def eval_microbatch(
      self, batch: int, microbatch: int, keys: Collection[str] | None = None
  ) -> dict[str, np.ndarray]:
    """Returns held-out samples, the same in every run; as `microbatch`."""
    if not 0 <= batch < self.num_eval_batches:
      raise ValueError(
          f"batch must be below {self.num_eval_batches}, got {batch}: there are"
          f" {self.source.num_heldout} held-out samples, and a batch takes "
          f"{self.batch_size}."
      )
    indices = self._indices(batch, microbatch)
    return select_arrays(self.source.heldout_batch(indices), keys)

  def _indices(self, step: int, microbatch: int) -> range:
    self.check(step, microbatch)
    place = operator.index(microbatch) * self.microbatch_size
    first = operator.index(step) * self.batch_size + place
    return range(first, first + self.microbatch_size)


def select_arrays(
    arrays: dict[str, Any], keys: Collection[str] | None
) -> dict[str, np.ndarray]:
  """Returns the requested arrays, read-only, because they are shared.

  Entries of `arrays` that are still functions are called if requested, and
  replaced by their result.
  """
  for key in keys or ():
    if key not in arrays:
      raise ValueError(base.suggest(key, arrays, what="array of a microbatch"))
  for key in [*arrays] if keys is None else keys:
    if callable(arrays[key]):
      arrays[key] = arrays[key]()
    arrays[key].flags.writeable = False
  return {key: arrays[key] for key in (arrays if keys is None else keys)}
