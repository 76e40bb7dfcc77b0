"""Prepares microbatches in a background thread, ahead of their use.

Results and errors are those without it: microbatches are kept until their step
is over, so that several stages can request them, or one again after a failure;
an error is raised to the caller that requests its microbatch.
"""

from collections.abc import Collection, Iterator
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
  arrays, such as images, are prepared only if they were requested at the same
  place of an earlier step: no other stage reads them here. Thread-safe.
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
    self._changed = threading.Condition()  # Guards the following fields.
    self._step = first_step
    self._ready: dict[_Key, dict[str, Any] | BaseException] = {}
    self._raised: set[_Key] = set()  # Errors in `_ready` that have been raised.
    self._asked: dict[int, set[str]] = {}  # Arrays, by microbatch.
    self._waiting: list[_Key] = []  # Of blocked callers; first.
    self._is_closed = False
    self._thread = threading.Thread(
        target=self._run, name="prefetch", daemon=True
    )
    self._thread.start()

  def microbatch(
      self, step: int, microbatch: int, keys: Collection[str] | None = None
  ) -> dict[str, np.ndarray]:
    """Returns `batches.microbatch(...)`, usually at once, else blocks.

    Steps may be requested again and in any order. Raises the source's error for
    this microbatch, and retries on the next call; `ValueError` if closed.
    """
    self.batches.check(step, microbatch)
    key = (step, microbatch)
    with self._changed:
      self._check_open()
      self._step = step
      self._ready = {k: v for k, v in self._ready.items() if self._is_kept(k)}
      self._raised &= self._ready.keys()
      self._asked.setdefault(microbatch, set()).update(keys or ())
      if key in self._raised:
        self._raised.remove(key)
        del self._ready[key]
      self._waiting.append(key)
      self._changed.notify_all()
      try:
        self._changed.wait_for(lambda: self._is_closed or key in self._ready)
      finally:
        self._waiting.remove(key)
      self._check_open()
      result = self._ready[key]
      if isinstance(result, BaseException):
        self._raised.add(key)
        raise result
    return batches_lib.select_arrays(result, keys)

  def close(self) -> None:
    """Stops the thread and waits for it; idempotent."""
    with self._changed:
      self._is_closed = True
      self._changed.notify_all()
    self._thread.join()
    for key, result in self._ready.items():
      if isinstance(result, BaseException) and key not in self._raised:
        logging.warning(
            "Unused data, (step, microbatch)=%s, failed: %r",
            key,
            result,
        )
    self._ready = {}

  def __enter__(self) -> Self:
    return self

  def __exit__(self, *error: object) -> None:
    self.close()

  def _check_open(self) -> None:
    if self._is_closed:
      raise ValueError("The prefetcher is closed.")

  def _is_kept(self, key: _Key) -> bool:
    ahead = key[0] - self._step
    return -1 <= ahead <= self._num_steps_ahead or key in self._waiting

  def _wanted(self) -> Iterator[_Key]:
    """Yields the keys to prepare, most urgent first; some may be ready."""
    yield from self._waiting
    for step in range(self._step, self._step + self._num_steps_ahead + 1):
      for microbatch in range(self.batches.num_microbatches):
        yield step, microbatch

  def _next_key(self) -> _Key | None:
    return next((k for k in self._wanted() if k not in self._ready), None)

  def _run(self) -> None:
    while True:
      with self._changed:
        self._changed.wait_for(
            lambda: self._is_closed or self._next_key() is not None
        )
        if self._is_closed:
          return
        key = self._next_key()
        assert key is not None, "woken without work"
        asked = frozenset(self._asked.get(key[1], ()))
      try:
        result: Any = self.batches.lazy_microbatch(*key)
        batches_lib.select_arrays(result, asked & result.keys())
      except BaseException as error:  # Raised by `microbatch`, to its caller.
        result = error
      with self._changed:
        if self._is_kept(key):
          self._ready[key] = result
        self._changed.notify_all()
