"""Prepares microbatches in a background thread, ahead of their use.

Results and errors are those without it: microbatches are kept until their step
is over, so that several stages can request them, or one again after a failure;
an error is raised to the caller that requests its microbatch.
"""

from collections.abc import Collection
from concurrent import futures
import threading
from typing import Any, Self

from absl import logging
import numpy as np

from bamboo_jax.data import batches as batches_lib

_Key = tuple[int, int]  # Step and microbatch.


class Prefetcher:
  """A `batches.Batches` that is read ahead; close it, or use it in a `with`.

  It prepares and keeps the microbatches of the last requested step and of
  `num_steps_ahead` later ones; those of the previous step are kept, too. Slow
  arrays, such as images, are prepared only for microbatches of which they were
  requested in an earlier step, as other processes may read the rest.
  Thread-safe.
  """

  def __init__(
      self,
      batches: batches_lib.Batches,
      *,
      first_step: int = 0,
      num_steps_ahead: int = 1,
  ) -> None:
    self.batches = batches
    self._num_steps_ahead = num_steps_ahead
    self._pool = futures.ThreadPoolExecutor(1, "prefetch")
    self._lock = threading.Lock()  # Guards the following fields.
    self._read: dict[_Key, futures.Future[dict[str, Any]]] = {}
    self._raised: set[_Key] = set()  # Errors in `_read` that have been raised.
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
      is_here = known is None or key in self._raised or known.cancel()
      found = known or futures.Future()
      if is_here:  # Nothing that waits its turn in the thread is waited for.
        found = self._read[key] = futures.Future()
        found.set_running_or_notify_cancel()
        self._raised.discard(key)
    if is_here:
      try:
        found.set_result(self._prepare(key))
      except BaseException as error:  # Raised below, to each caller.
        found.set_exception(error)
    futures.wait([found])
    with self._lock:
      self._plan(step)
      if found.exception():
        self._raised.add(key)
    return batches_lib.select_arrays(found.result(), keys)

  def close(self) -> None:
    """Stops the thread and waits for it; idempotent."""
    with self._lock:
      self._is_closed = True
    self._pool.shutdown(cancel_futures=True)
    for key, found in self._read.items():
      if found.cancelled() or key in self._raised:
        continue
      if error := found.exception():
        logging.warning(
            "Unused data, (step, microbatch)=%s, failed: %r", key, error
        )
    self._read = {}

  def __enter__(self) -> Self:
    return self

  def __exit__(self, *error: object) -> None:
    self.close()

  def _plan(self, step: int) -> None:
    """Drops what is far from `step`, and reads it and the steps ahead."""
    for key in [*self._read]:
      if not -1 <= key[0] - step <= self._num_steps_ahead:
        self._read.pop(key).cancel()
        self._raised.discard(key)
    for ahead in range(self._num_steps_ahead + 1):
      for microbatch in range(self.batches.num_microbatches):
        key = (step + ahead, microbatch)
        if key not in self._read and not self._is_closed:
          self._read[key] = self._pool.submit(self._prepare, key)

  def _prepare(self, key: _Key) -> dict[str, Any]:
    arrays = self.batches.lazy_microbatch(*key)
    with self._lock:
      asked = arrays.keys() & self._asked.get(key[1], ())
    batches_lib.select_arrays(arrays, asked)
    return arrays
