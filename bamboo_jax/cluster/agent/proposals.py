"""How a view comes about: the oldest agent that lives writes it to the store.

If two try, as each takes the other for dead, the store takes the first, and the
other reads it. An agent that has lost most others lets them go first, as it may
be the one that is cut off, or was stopped and has woken.
"""

import asyncio
from collections.abc import Callable, Coroutine
import functools
import time
from typing import Any

from absl import logging

from bamboo_jax.cluster import views
from bamboo_jax.cluster.store import registry as registry_lib

_RETRY_SECS = 0.1
_PATIENCE_SECS = 1.0


class Proposals:
  """Writes and reads views.

  Args:
    registry: The store.
    wanted: Returns the view to propose here, None if there is nothing to do.
    is_minority: Whether a view would leave most others out.
    on_written: Called with a view that was proposed here, and won.
    known: Returns the number of the newest view that is known here.
    on_read: Called with newer ones, in order; they may be known by then.
    start: Runs a coroutine in the background.
  """

  def __init__(
      self,
      registry: registry_lib.Registry,
      *,
      wanted: Callable[[], views.View | None],
      is_minority: Callable[[views.View], bool],
      on_written: Callable[[views.View], None],
      known: Callable[[], int],
      on_read: Callable[[views.View], None],
      start: Callable[[Coroutine[Any, Any, None]], None],
  ) -> None:
    self._registry = registry
    self._wanted = wanted
    self._is_minority = is_minority
    self._on_written = on_written
    self._known = known
    self._on_read = on_read
    self._start = start
    self._is_deciding = False
    self._patient_for = 0

  def decide(self) -> None:
    """Makes the next view in the background, if that is this agent's turn."""
    if not self._is_deciding:
      self._is_deciding = True
      self._start(self._propose())

  async def read(self) -> None:
    """Reads the views that are not known here; `OSError` if it cannot.

    All of them, as workers go through them in order; who knows none yet is in
    none of them, unless it is the last.
    """
    if known := self._known():
      read = functools.partial(self._registry.read_views, after=known)
      found = await asyncio.to_thread(read)
    else:
      newest = await asyncio.to_thread(self._registry.read_view)
      found = [newest] if newest is not None else []
    for view in found:
      self._on_read(view)

  async def read_surely(self) -> None:
    """Reads the current view; tries as often as it takes."""
    while True:
      try:
        await self.read()
        return
      except OSError as error:
        logging.warning("%s Trying again.", error)
        await asyncio.sleep(_RETRY_SECS)

  async def wait_newer(self, *, secs: float) -> None:
    """Reads the view again and again, as the others may be about to write."""
    end_secs = time.monotonic() + secs
    while time.monotonic() < end_secs:
      await self.read_surely()
      await asyncio.sleep(_RETRY_SECS)

  async def _propose(self) -> None:
    try:
      while (view := self._wanted()) is not None:
        if self._is_minority(view) and self._patient_for < view.number:
          self._patient_for = view.number
          await asyncio.sleep(_PATIENCE_SECS)
          await self.read()
        elif await asyncio.to_thread(self._registry.write_view, view):
          self._on_written(view)
        else:
          await self.read()
    except OSError as error:
      logging.warning("%s Trying again.", error)
      await asyncio.sleep(_RETRY_SECS)
      asyncio.get_running_loop().call_soon(self.decide)
    finally:
      self._is_deciding = False
