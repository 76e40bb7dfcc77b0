"""The coordination services, as an agent and its worker see them.

The worker reaches each through a `proxy` in the agent, so the death of one is
no harm until a new transfer has to be set up.
"""

import asyncio
from collections.abc import Callable, Coroutine
import contextlib
import dataclasses
import time
from typing import Any

from absl import logging

from bamboo_jax.cluster import frames
from bamboo_jax.cluster import proxy as proxy_lib
from bamboo_jax.cluster.sessions import era_keys
from bamboo_jax.cluster.sessions import eras
from bamboo_jax.cluster.store import etcd as etcd_lib

_POLL_SECS = 0.1
_PATIENCE_SECS = 60.0  # How long a node that comes waits for a service.


class Services:
  """The eras that one agent knows.

  Args:
    etcd: The store.
    run: Name of the run there.
    fixed: The only era there is, if none is in the store.
    tell: Says something to the worker. It is told of eras, with the address of
      the proxy, from `tell_newest` on.
    on_change: Called when a service has died, or there is a new one.

  Attributes:
    used: Number of the era that the worker is in, -1 before it is in one.
  """

  def __init__(
      self,
      etcd: etcd_lib.Etcd,
      run: str,
      *,
      fixed: eras.Era | None,
      tell: Callable[[frames.Message], None],
      on_change: Callable[[], None],
  ) -> None:
    self._keys = era_keys.EraKeys(etcd, run)
    self._fixed = fixed
    self._tell = tell
    self._on_change = on_change
    self.used = -1
    self._newest: eras.Era | None = None
    self._message: frames.Message = {}
    self._tells = False
    self._proxies: dict[int, proxy_lib.Proxy] = {}
    self._looking = asyncio.Lock()

  @property
  def newest(self) -> int:
    """Number of the newest era that is known, -1 if none is."""
    return -1 if self._newest is None else self._newest.number

  def needed(self, current: int) -> int | None:
    """Returns the era that the next view has to be in, at least.

    Args:
      current: The era of the current view.

    Returns:
      `current` as long as its service lives, else a newer one; None if there is
      none yet.
    """
    for number in (current, self.newest):
      proxy = self._proxies.get(number)
      if proxy is not None and not proxy.is_lost:
        return max(current, number)
    return None

  async def wait_slot(self, number: int) -> None:
    """Waits for an era in which a node has a slot; asks for one if need be.

    Raises:
      OSError: The store or the service cannot be reached.
      ValueError: The node has come just when an era began.
    """
    end_secs = time.monotonic() + _PATIENCE_SECS
    while time.monotonic() < end_secs:
      await self.look()
      newest = self._newest
      if newest is None:
        problem = "There is no coordination service"
      elif eras.is_late(newest, number):
        raise ValueError(
            f"Node {number} came when era {newest.number} began, which has no "
            "slot for it; start it again."
        )
      elif eras.slot_of(newest, number) is None:
        problem = f"Era {newest.number} has no slot for node {number}"
        if newest is self._fixed:
          raise ValueError(
              f"{problem}, dead nodes included, and without --etcd the "
              "coordinator starts no other."
          )
        await asyncio.to_thread(self._keys.want, newest.number + 1)
      elif await _is_reachable(newest.address):
        return
      else:
        problem = f"The coordination service at {newest.address} is dead"
      await asyncio.sleep(_POLL_SECS)
    raise OSError(f"{problem}; start launch.coordinator again.")

  async def look(self) -> None:
    """Reads the newest era; raises `OSError`."""
    async with self._looking:
      found = await asyncio.to_thread(self._keys.all)
      if not found and self._fixed is not None:
        found = [self._fixed]
      for era in found:
        if era.number > self.newest:
          await self._add(era)

  async def is_late(self, number: int) -> bool:
    """Returns whether a node comes too late for the newest era; `OSError`."""
    await self.look()
    return self._newest is not None and eras.is_late(self._newest, number)

  async def find(self, number: int) -> None:
    """Reads an era that others know already; waits for the store."""
    while self.newest < number:
      try:
        await self.look()
      except OSError as error:
        logging.warning("%s", error)
        await asyncio.sleep(_POLL_SECS)

  def use(self, name: str, number: int) -> Coroutine[Any, Any, None]:
    """Notes that the worker is in an era, and needs no older one any more.

    Args:
      name: Name of the node.
      number: Number of the era.

    Returns:
      What is left to do, to let the coordinator know.
    """
    self.used = number
    for old in [n for n in self._proxies if n < number]:
      self._proxies.pop(old).cut()
    return self._note_used(name, number)

  async def _note_used(self, name: str, number: int) -> None:
    with contextlib.suppress(OSError):  # Then an old service lives longer.
      await asyncio.to_thread(self._keys.use, name, number)

  def tell_newest(self) -> None:
    """Tells the worker of the newest era, and then of those that follow."""
    self._tells = True
    self._tell(self._message)

  async def _add(self, era: eras.Era) -> None:
    proxy = proxy_lib.Proxy(era.address, on_lost=self._on_change)
    port = await proxy.listen()
    self._proxies[era.number] = proxy
    self._newest = era
    seen = dataclasses.replace(era, address=f"127.0.0.1:{port}")
    self._message = {"kind": "era", "era": seen.to_json()}
    if self._tells:
      self._tell(self._message)
    self._on_change()

  def close(self) -> None:
    """Closes all connections."""
    for proxy in self._proxies.values():
      proxy.close()


async def _is_reachable(address: str) -> bool:
  try:
    _, writer = await asyncio.open_connection(*etcd_lib.parse_endpoint(address))
  except OSError:
    return False
  writer.close()
  return True
