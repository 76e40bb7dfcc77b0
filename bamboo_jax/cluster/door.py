"""Accepts authenticated connections of other processes of the run.

A connection is handed over once its other end has shown a certificate. Until
then it occupies a socket for a limited time; if too many are pending, the
oldest is dropped, so a flood of strangers locks no member out.
"""

import asyncio
from collections.abc import Awaitable, Callable
import contextlib
import socket

from absl import logging

from bamboo_jax.base import logs
from bamboo_jax.net import addresses, identity as identity_lib

HELLO_SECS = 30.0  # A busy machine may take a while.
_MAX_STRANGERS = 256
_PAUSE_SECS = 0.2  # Before a retry without file descriptors.
# Nothing is sent on accepted connections: only this detects a lost machine.
_KEEP_ALIVE = {
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE): 1,
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE): 60,
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL): 10,
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT): 6,
}
_THIN_LINEAR_TIMEOUTS = 16  # Of TCP; Python does not name it.
_FOR_BAD_LINKS: dict[tuple[int, int], int | bytes] = {
    # Retransmits at constant intervals while little is in flight. Exponential
    # backoff would be silent for seconds after a few losses. Not all congestion
    # controls support this.
    (socket.IPPROTO_TCP, _THIN_LINEAR_TIMEOUTS): 1,
    (socket.IPPROTO_TCP, socket.TCP_CONGESTION): b"reno",
    # The least MTU of IPv6: some tunnels silently drop larger packets.
    (socket.IPPROTO_TCP, socket.TCP_MAXSEG): 1200,
}

_Guide = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Door:
  """Calls `guide` with each connection of an agent, in a task.

  The connection is closed when `guide` returns, or rejects it with `OSError`,
  `ValueError` or `EOFError`.
  """

  def __init__(self, identity: identity_lib.Identity, guide: _Guide) -> None:
    self._identity = identity
    self._guide = guide
    self._strangers: dict[asyncio.Task[None], None] = {}  # The oldest first.
    self._refusals = logs.Sparing()
    self._tasks: set[asyncio.Task[None]] = set()
    self._accepting: asyncio.Task[None] | None = None

  def listen(self, host: str, port: int = 0) -> int:
    """Starts to accept connections; returns the port.

    Raises:
      OSError: It cannot listen there.
    """
    try:
      family, address = addresses.find(host, port)
      listener = socket.create_server(address, family=family, backlog=512)
      ease(listener)  # Accepted sockets inherit it.
    except OSError as error:
      raise OSError(
          f"Cannot listen on {host!r}: {error.strerror}. --host must be an "
          "address of this machine."
      ) from error
    listener.setblocking(False)
    self._accepting = self.start(self._accept(listener))
    # Not in the task, which never starts if it is cancelled at once.
    self._accepting.add_done_callback(lambda _: listener.close())
    bound_to: int = listener.getsockname()[1]
    return bound_to

  async def shut(self) -> None:
    """Stops accepting; keeps accepted connections."""
    if self._accepting is not None:
      self._accepting.cancel()
      await asyncio.wait([self._accepting])

  async def close(self) -> None:
    """Ends all connections."""
    await self.shut()
    while self._tasks:  # New connections have one too.
      for task in self._tasks:
        task.cancel()
      await asyncio.wait(self._tasks)

  def start(self, work: Awaitable[None]) -> asyncio.Task[None]:
    """Starts a task that ends when this is closed."""
    task = asyncio.ensure_future(work)
    self._tasks.add(task)
    task.add_done_callback(self._tasks.discard)
    return task

  async def _accept(self, listener: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    while True:
      try:
        connection, address = await loop.sock_accept(listener)
      except OSError as error:
        logging.warning("Cannot accept a connection: %s", error)
        await asyncio.sleep(_PAUSE_SECS)
        continue
      task = self.start(self._let_in(connection, address))
      self._strangers[task] = None
      await asyncio.sleep(0)  # It starts, and owns the connection.
      if len(self._strangers) > _MAX_STRANGERS:
        oldest = next(iter(self._strangers))
        del self._strangers[oldest]
        oldest.cancel()

  async def _let_in(self, connection: socket.socket, address: object) -> None:
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    loop = asyncio.get_running_loop()
    try:
      with contextlib.ExitStack() as stack:
        stack.callback(connection.close)
        for option, value in _KEEP_ALIVE.items():
          connection.setsockopt(*option, value)
        transport, _ = await loop.connect_accepted_socket(
            lambda: protocol,
            connection,
            ssl=self._identity.server,
            ssl_handshake_timeout=HELLO_SECS,
        )
        stack.pop_all()
    except (OSError, TimeoutError) as error:
      self._log_refusal(address, error)
      return
    finally:
      if task := asyncio.current_task():
        self._strangers.pop(task, None)
    writer = asyncio.StreamWriter(transport, protocol, reader, loop)
    with contextlib.closing(writer):
      try:
        self._identity.check(writer.get_extra_info("ssl_object"), "agent")
        await self._guide(reader, writer)
      except (OSError, ValueError, EOFError, TimeoutError) as error:
        self._log_refusal(address, error)

  def _log_refusal(self, address: object, error: Exception) -> None:
    said = str(error) or type(error).__name__
    self._refusals.warn("Refused a connection from %s: %s", address, said)


def ease(connection: socket.socket) -> None:
  """Prepares a socket of agents for lossy links and small MTUs."""
  for option, value in _FOR_BAD_LINKS.items():
    try:
      connection.setsockopt(*option, value)
    except PermissionError as error:  # The machine does not allow it.
      logging.log_first_n(logging.INFO, "Option %s: %s", 1, option, error)
