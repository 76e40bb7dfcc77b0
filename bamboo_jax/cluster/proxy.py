"""The way of a worker to a coordination service, which may die.

JAX ends its process as soon as the connection to the service is closed, or the
service says goodbye. So the worker connects to its agent, which forwards all,
and keeps the connection open, in silence, when the service is gone. Until it
needs the service again, the worker does not notice.

  worker --plain, loopback--> Proxy ==TLS==> Gate --plain, loopback--> service

The service of JAX knows no keys, so it listens on the loopback interface, and a
gate before it lets agents of the run through.
"""

import asyncio
import threading

from bamboo_jax.cluster import door as door_lib
from bamboo_jax.cluster import identity as identity_lib
from bamboo_jax.cluster.store import etcd as etcd_lib

_CHUNK = 1 << 16
_HELLO_SECS = 10.0


class Proxy:
  """Forwards connections to `address`; `lost` is set once one is closed."""

  def __init__(self, address: str, identity: identity_lib.Identity) -> None:
    self.lost = asyncio.Event()
    self._is_cut = False
    self._address = etcd_lib.parse_endpoint(address)
    self._identity = identity
    self._server: asyncio.Server | None = None
    self._tasks: set[asyncio.Task] = set()
    self._back: set[asyncio.Task] = set()  # What passes on the answers.

  async def listen(self) -> int:
    """Starts to accept connections on loopback; returns the port."""
    self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
    return self._server.sockets[0].getsockname()[1]

  def cut(self) -> None:
    """Leaves the service; connections to the worker stay, silent."""
    self._is_cut = True
    self._server.close()
    for task in self._back:
      task.cancel()

  def close(self) -> None:
    """Closes all connections."""
    self._server.close()
    for task in self._tasks:
      task.cancel()

  async def _accept(
      self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
  ) -> None:
    """Forwards what comes from the worker until it closes the connection."""
    task = asyncio.current_task()
    self._tasks.add(task)
    task.add_done_callback(self._tasks.discard)
    try:
      await self._forward(reader, writer)
    except OSError:
      self.lost.set()  # It could not be reached at all.
    except asyncio.CancelledError:
      return  # The agent ends.
    finally:
      writer.close()

  async def _forward(
      self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
  ) -> None:
    source, sink = await asyncio.open_connection(
        *self._address,
        ssl=self._identity.client,
        ssl_handshake_timeout=_HELLO_SECS,
    )
    self._identity.check(sink.get_extra_info("ssl_object"), "coordinator")
    back = asyncio.create_task(self._pass_back(source, writer))
    self._back.add(back)
    back.add_done_callback(self._back.discard)
    try:
      await _pump(reader, sink)
    finally:
      back.cancel()
      sink.close()

  async def _pass_back(
      self, source: asyncio.StreamReader, writer: asyncio.StreamWriter
  ) -> None:
    if not self._is_cut:
      await _pump(source, writer)
      self.lost.set()


class Gate:
  """Lets agents of a run through to a service on this machine, in a thread.

  Args:
    host: Where to listen; the service listens on `inner_port` of loopback.

  Raises:
    OSError: The port is in use.
  """

  def __init__(
      self,
      host: str,
      port: int,
      *,
      inner_port: int,
      identity: identity_lib.Identity,
  ) -> None:
    self._inner_port = inner_port
    self._door = door_lib.Door(identity, self._join)
    self._loop = asyncio.new_event_loop()
    threading.Thread(
        target=self._loop.run_forever, name="gate", daemon=True
    ).start()
    listening = self._listen(host, port)
    asyncio.run_coroutine_threadsafe(listening, self._loop).result()

  def close(self) -> None:
    """Lets nobody in any more; who is through is left alone."""
    asyncio.run_coroutine_threadsafe(self._door.shut(), self._loop).result()

  async def _listen(self, host: str, port: int) -> None:
    self._door.listen(host, port)

  async def _join(
      self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
  ) -> None:
    """Forwards both ways until either end is closed."""
    source, sink = await asyncio.open_connection("127.0.0.1", self._inner_port)
    ways = ((reader, sink), (source, writer))
    pumps = [asyncio.create_task(_pump(*way)) for way in ways]
    try:
      await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
    finally:
      for pump in pumps:
        pump.cancel()
      sink.close()


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
  """Forwards all that comes; drops the rest once the other end is gone."""
  while True:
    try:
      data = await reader.read(_CHUNK)
    except OSError:
      return
    if not data:
      return
    if not writer.is_closing():
      try:
        writer.write(data)
        await writer.drain()
      except OSError:
        continue  # The other end is gone, and this one is kept.
