"""Executables of other machines, by way of the coordination service.

Machines that share no folder compile each program once between them, and use
the same one, so that GPUs have the same autotuning:

  1 A  claims the key: is first         B  claims the key: is not
  2 A  compiles, or has it in a folder  B  waits for the digest
  3 A  writes executable, then digest
  4                                     B  has the same, or fetches it

B waits for a limited time: A may have died. So may the service, and whoever
asks it is then not answered at all (see `cluster.proxy`).
"""

from collections.abc import Callable
import hashlib
import time
from typing import Any, TypeVar

from absl import logging

from bamboo_jax.base import threads
from bamboo_jax.runtime import compat

_PREFIX = "executables"
_POLL_SECS = 0.05
_ANSWER_SECS = 5.0  # At least; the service answers in milliseconds.

T = TypeVar("T")


class Shared:
  """What members of a coordination service have; used by any thread.

  Attributes:
    wait_secs: How long to wait for another's executable; 0 where training
      waits for it.
  """

  def __init__(self, wait_secs: float = 20.0) -> None:
    self.wait_secs = wait_secs
    self._is_usable = True

  def agree(self, key: str, own: bytes | None) -> bytes | None:
    """Returns the executable that all use; None: compile, and `put` it.

    `own` is what a folder of this machine has.
    """
    if not self._is_usable:
      return own
    try:
      claim = f"{_PREFIX}/{key}/claim"
      if self._ask(compat.set_coordination_value, claim, b""):
        if own is not None:
          self.put(key, own)
        return own
      digest = self._wait_digest(key)
      if digest is None or (own is not None and _hash(own) == digest):
        return own
      found = self._ask(compat.coordination_values, f"{_PREFIX}/{key}/data")
    except RuntimeError as error:
      self._give_up(error)
      return own
    data = next(iter(found.values()), b"")
    return data if _hash(data) == digest else own

  def put(self, key: str, data: bytes) -> None:
    """Lets others have an executable; the first one counts."""
    if self._is_usable:
      put = compat.set_coordination_value
      try:
        self._ask(put, f"{_PREFIX}/{key}/data/0", data)
        self._ask(put, f"{_PREFIX}/{key}/digest/0", _hash(data))
      except RuntimeError as error:
        self._give_up(error)

  def _wait_digest(self, key: str) -> bytes | None:
    deadline = time.monotonic() + self.wait_secs
    while True:
      digest = f"{_PREFIX}/{key}/digest"
      found = self._ask(compat.coordination_values, digest)
      if found or time.monotonic() >= deadline:
        return next(iter(found.values()), None)
      time.sleep(_POLL_SECS)

  def _ask(self, call: Callable[..., T], *arguments: Any) -> T:
    """Returns what a call returns; `RuntimeError` if it takes too long."""
    answer = threads.call_beside(call, *arguments, name="shared")
    secs = max(_ANSWER_SECS, self.wait_secs)
    try:
      return answer.result(timeout=secs)
    except TimeoutError:
      raise RuntimeError(
          f"The coordination service has not answered for {secs:g} s."
      ) from None

  def _give_up(self, error: RuntimeError) -> None:
    """Goes on alone, until the process connects to a service again."""
    self._is_usable = False
    logging.warning("Compiled programs are not shared any more: %s", error)


def _hash(data: bytes) -> bytes:
  return hashlib.sha256(data).digest()
