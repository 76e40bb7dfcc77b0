"""Notes which transfers this process begins, and can stop it from doing so.

A transfer that has been begun ends only when the other end begins it too. When
a node has died, those that are left stop where they are, tell each other what
they have begun, and level it; see `cluster.drain`.
"""

from collections.abc import Callable, Collection
import threading
from typing import Any

import jax

from bamboo_jax.cluster import drain
from bamboo_jax.runtime.wire import connections as sockets_lib

PyTree = Any


class StoppedError(RuntimeError):
  """Nothing new may begin: what to do next is decided anew."""


class Gate:
  """What all transfers with other processes pass; may be used by any thread."""

  def __init__(self) -> None:
    self._lock = threading.Lock()
    self._is_open = True
    self._closed_for = 0
    self._since = (0, 0)
    self._begun: list[str] = []
    self._era = 0
    self._connected: set[str] = set()
    self._sockets = sockets_lib.Sockets()

  def begin(self, channel: str) -> None:
    """Notes a transfer that begins now.

    Raises:
      StoppedError: It must not begin.
    """
    with self._lock:
      self._check()
      self._begun.append(channel)

  def run(self, channel: str, transfer: Callable[[], PyTree]) -> PyTree:
    """Returns what a transfer returns, which has been begun or followed in.

    The first one of a channel makes a connection, so it is waited for.
    """
    if channel in self._connected:
      return transfer()
    with self._sockets.note(drain.ends_of(channel)):
      result = jax.block_until_ready(transfer())
    self._connected.add(channel)
    return result

  def check(self) -> None:
    """Raises `StoppedError` if nothing may begin."""
    with self._lock:
      self._check()

  def follow(self, channel: str) -> None:
    """Notes a transfer that begins only to end that of another node."""
    with self._lock:
      self._begun.append(channel)

  def close(
      self, view: int, *, alive: Collection[int] | None = None
  ) -> drain.Begun:
    """Stops what has not begun; returns what has since all were level.

    Args:
      view: Number of the view that is the reason.
      alive: Its members, if others are gone: transfers with those fail.
    """
    with self._lock:
      self._is_open = False
      self._closed_for = max(view, self._closed_for)
      begun = drain.Begun(self._since, tuple(self._begun), self._era)
    if alive is not None:
      self._sockets.cut(alive)
    return begun

  def begun(self) -> drain.Begun:
    """Returns what has begun since all were level."""
    with self._lock:
      return drain.Begun(self._since, tuple(self._begun), self._era)

  def level(self, view: int, step: int) -> None:
    """Notes that all that was begun has ended everywhere."""
    with self._lock:
      self._since = (view, step)
      self._begun.clear()

  def open(self, view: int) -> None:
    """Lets transfers begin in a view, unless a newer one has stopped them."""
    with self._lock:
      self._is_open = view >= self._closed_for

  def move(self, era: int) -> None:
    """Notes that this process is in an era, where nothing is connected yet."""
    with self._lock:
      self._era = era
      self._begun.clear()
      self._connected.clear()
      self._sockets = sockets_lib.Sockets()

  def _check(self) -> None:
    if not self._is_open:
      raise StoppedError("Stopped by a new view.")
