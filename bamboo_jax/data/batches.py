"""Groups the samples of a source into steps and microbatches.

Sample `step * batch_size + i` is the `i`-th of its step; a step's samples are
assigned to its microbatches in order. So a microbatch depends only on (seed,
step, microbatch), not on the number of pipelines or on the node. `Prefetcher`
prepares them in a background thread, ahead of their use.
"""

from collections.abc import Collection
from concurrent import futures
import dataclasses
import operator
import threading
from typing import Any, Self

from absl import logging
import numpy as np

from bamboo_jax import base
from bamboo_jax.data import samples

_Key = tuple[int, int]  # Step and microbatch.


@dataclasses.dataclass(frozen=True)
class Batches:
  """The batches of a run: pure functions; arrays are read-only."""

  source: samples.Source
  seed: int
  num_microbatches: int
  microbatch_size: int

  @property
  def batch_size(self) -> int:
    """Samples of a step."""
    return self.num_microbatches * self.microbatch_size

  def eval_weights(self, most: int) -> list[float]:
    """Returns how often each microbatch of an evaluation counts, about `most` of them.

    The last held-out sample fills the last microbatch. One more, of that sample alone,
    takes the copies off again: so any loss that sums over samples is the sum over those
    that there are.
    """
    size = self.microbatch_size
    num_whole, rest = divmod(self.source.num_heldout, size)
    if num_whole >= most or not rest:
      return [1.0] * min(num_whole, most)
    return [1.0] * (num_whole + 1) + [rest / size - 1]

  def check(self, step: int, microbatch: int) -> None:
    """Raises `ValueError` if an index is out of range."""
    if step < 0 or not 0 <= microbatch < self.num_microbatches:
      raise ValueError(
          "step and microbatch must be at least 0, and microbatch below "
          f"num_microbatches={self.num_microbatches}, got {step} and "
          f"{microbatch}."
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
    indices = self.find_samples(step, microbatch)
    return self.source.batch(indices, seed=self.seed)

  def eval_microbatch(
      self, batch: int, microbatch: int, keys: Collection[str] | None = None
  ) -> dict[str, np.ndarray]:
    """Returns held-out samples, the same in every run; as `microbatch`."""
    indices = self.find_heldout(batch, microbatch)
    return select_arrays(self.source.heldout_batch(indices), keys)

  def find_heldout(self, batch: int, microbatch: int) -> list[int]:
    """Returns the numbers of held-out samples; the last one follows itself."""
    last = self.source.num_heldout - 1
    return [min(i, last) for i in self.find_samples(batch, microbatch)]

  def find_samples(self, step: int, microbatch: int) -> range:
    """Returns the numbers of the samples of a microbatch."""
    self.check(step, microbatch)
    place = operator.index(microbatch) * self.microbatch_size
    first = operator.index(step) * self.batch_size + place
    return range(first, first + self.microbatch_size)


class Prefetcher:
  """`Batches` that are read ahead; close it, or use it in a `with`.

  Results and errors are those without it: microbatches are kept until their
  step is over, so that several stages can request them, or one again after a
  failure; an error is raised to the caller that requests its microbatch.

  It prepares and keeps the microbatches of the last requested step and of
  `num_steps_ahead` later ones; those of the previous step are kept, too. Slow
  arrays, such as images, are prepared only for microbatches of which they were
  requested in an earlier step, as other processes may read the rest.
  Thread-safe.
  """

  def __init__(self, batches: Batches, *, first_step: int = 0, num_steps_ahead: int = 1) -> None:
    self.batches = batches
    self._num_steps_ahead = num_steps_ahead
    self._pool = futures.ThreadPoolExecutor(1, "prefetch")
    self._lock = threading.Lock()  # Guards the following fields.
    # None: it has failed, which a caller knows; so it is read again if one asks.
    self._read: dict[_Key, futures.Future[dict[str, Any]] | None] = {}
    self._asked: dict[int, set[str]] = {}  # Arrays, by microbatch.
    self._is_closed = False
    self._plan(first_step)

  def microbatch(
      self, step: int, microbatch: int, keys: Collection[str] | None = None
  ) -> dict[str, np.ndarray]:
    """Returns `batches.microbatch(...)`, usually at once, else blocks.

    Steps may be requested again and in any order. Raises the source's error for
    this microbatch, and retries on the next call; `ValueError` if closed.
    """
    self.batches.check(step, microbatch)
    key = (step, microbatch)
    with self._lock:
      if self._is_closed:
        raise ValueError("The prefetcher is closed.")
      self._asked.setdefault(microbatch, set()).update(keys or ())
      known = self._read.get(key)
      is_here = known is None or known.cancel()
      found = known or futures.Future()
      if is_here:  # Nothing that waits its turn in the thread is waited for.
        found = self._read[key] = futures.Future()
        found.set_running_or_notify_cancel()
    if is_here:
      try:
        found.set_result(self._prepare(key))
      except BaseException as error:  # Raised below, to each caller.
        found.set_exception(error)
    futures.wait([found])
    with self._lock:
      self._plan(step)
      if found.exception() and self._read.get(key) is found:
        self._read[key] = None
    return select_arrays(found.result(), keys)

  def close(self) -> None:
    """Stops the thread and waits for it; idempotent."""
    with self._lock:
      self._is_closed = True
    self._pool.shutdown(cancel_futures=True)
    for key, found in self._read.items():
      if found and not found.cancelled() and (error := found.exception()):
        logging.warning("Unused data, (step, microbatch)=%s, failed: %r", key, error)
    self._read = {}

  def __enter__(self) -> Self:
    return self

  def __exit__(self, *error: object) -> None:
    self.close()

  def _plan(self, step: int) -> None:
    """Drops what is far from `step`, and reads it and the steps ahead."""
    for key in [*self._read]:
      if not -1 <= key[0] - step <= self._num_steps_ahead:
        if known := self._read.pop(key):
          known.cancel()
    for ahead in range(self._num_steps_ahead + 1):
      for microbatch in range(self.batches.num_microbatches):
        key = (step + ahead, microbatch)
        if key not in self._read and not self._is_closed:
          self._read[key] = self._pool.submit(self._prepare, key)

  def _prepare(self, key: _Key) -> dict[str, Any]:
    arrays = self.batches.lazy_microbatch(*key)
    with self._lock:
      asked = arrays.keys() & self._asked.get(key[1], ())
    select_arrays(arrays, asked)
    return arrays


def select_arrays(arrays: dict[str, Any], keys: Collection[str] | None) -> dict[str, np.ndarray]:
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
