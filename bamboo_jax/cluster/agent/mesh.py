"""The connections of an agent with the others.

Each agent sends on the connections that it opens, and reads from those that
others open. What a closed connection means `agent` decides.

    dialer                            listener
      |--- connect, TLS ----------------->|   both show certificates of the run
      |<-- "hello": who, and which run ---|   another agent, or another run: the dialed one is gone
      |--- "hello" ---------------------->|
      |--- messages --------------------->|

Until its hello a stranger occupies a socket for a limited time; if too many do, the
oldest is dropped, so a flood of strangers locks no member out (waiting for a free place would).
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
import contextlib
import errno
import socket
from typing import Any

from absl import logging

from bamboo_jax.base import logs
from bamboo_jax.cluster import messages, views
from bamboo_jax.net import addresses, callers, identity as identity_lib

HELLO_SECS = 30.0  # A busy machine may take a while.
_CONNECT_SECS = 5.0
# Linux backs off; a new attempt finds a mended link sooner: within the second for which agents
# wait for it (`suspicion`), the pause before it included.
_TRY_SECS = 0.7
_RETRY_SECS = 0.2  # Without file descriptors.
_BREAKS_SECS, _BROKE_SECS = 2.0, 0.05  # How long a reset greeting is repeated.
_HELLO_BYTES = 1 << 16
_MAX_STRANGERS = 256
# Errors of this agent, no evidence about the other one.
_OWN_ERRORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_THIN_LINEAR_TIMEOUTS = 16  # Of TCP; Python does not name it.
_OPTIONS: dict[tuple[int, int], int | bytes] = {
    # Nothing is sent on accepted connections: only this detects a lost machine.
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE): 1,
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE): 60,
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL): 10,
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT): 6,
    # Retransmits at constant intervals while little is in flight. Exponential
    # backoff would be silent for seconds after a few losses. Not all congestion
    # controls support this.
    (socket.IPPROTO_TCP, _THIN_LINEAR_TIMEOUTS): 1,
    (socket.IPPROTO_TCP, socket.TCP_CONGESTION): b"reno",
    # The least MTU of IPv6: some tunnels silently drop larger packets.
    (socket.IPPROTO_TCP, socket.TCP_MAXSEG): 1200,
}

_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class GoneError(OSError):
  """The process of an agent is gone: connections are refused, or reach another."""


class Mesh:
  """The connections with other agents, by incarnation.

  A connection is closed if the other host acknowledges nothing for `ack_secs`:
  Linux tries for minutes.
  """

  def __init__(self, identity: identity_lib.Identity, *, ack_secs: float) -> None:
    self._identity, self._ack_secs = identity, ack_secs
    self._writers: dict[str, asyncio.StreamWriter] = {}
    self._heard: dict[str, set[asyncio.StreamWriter]] = {}  # From others.
    self._left: set[str] = set()
    self._refused: set[str] = set()  # Last attempts.
    self._strangers, self._refusals = callers.Callers(_MAX_STRANGERS), logs.Sparing()
    self._server: asyncio.Server | None = None
    self._tasks: set[asyncio.Task[None]] = set()  # One for each accepted connection.

  async def listen(
      self,
      host: str,
      *,
      hello: Callable[[], messages.Hello],
      on_came: Callable[[views.Member], None],
      on_message: Callable[[str, Any], None],
  ) -> int:
    """Starts to accept connections; returns the port, or raises `OSError`.

    `hello` returns that of this agent; `on_came` gets each agent that connects, `on_message`
    what it says.
    """
    self._hello, self._on_came, self._on_message = hello, on_came, on_message
    try:
      family, address = addresses.find(host, 0)
      listener = socket.create_server(address, family=family)
      _ease(listener)  # Accepted sockets inherit it.
    except OSError as error:
      raise OSError(
          f"Cannot listen on {host!r}: {error.strerror}. --host must be an "
          "address of this machine."
      ) from error
    self._server = await asyncio.start_server(self._accept, sock=listener, backlog=512)
    port: int = listener.getsockname()[1]
    return port

  @contextlib.asynccontextmanager
  async def connect(
      self, member: views.Member, on_accepted: Callable[[], None]
  ) -> AsyncIterator[Awaitable[str]]:
    """Connects to an agent; yields what returns why the connection has ended.

    `on_accepted` is called once its host accepts connections after a refusal;
    the agent itself may take a while to answer. Raises `GoneError` if its process is gone,
    otherwise `OSError` if it cannot be reached.
    """
    known = member.incarnation
    try:
      reader, writer = await self._reach(member, on_accepted)
    except ConnectionRefusedError as error:
      self._refused.add(known)
      raise GoneError("refused") from error
    except GoneError:
      raise
    except EOFError as error:
      raise OSError("it was closed at once") from error
    except (OSError, ValueError) as error:
      raise OSError(str(error) or type(error).__name__) from error
    self._writers[known] = writer
    try:
      yield _find_end(reader)
    finally:
      writer.close()
      if self._writers.get(known) is writer:
        del self._writers[known]

  def send(self, message: Any, to: Iterable[str] | None = None) -> None:
    """Sends to some agents, by default to all; only if connected."""
    data = messages.encode(message)
    for incarnation in list(self._writers) if to is None else to:
      writer = self._writers.get(incarnation)
      if writer is not None and not writer.is_closing():
        writer.write(data)

  def forget(self, incarnation: str) -> None:
    """Closes the connections with a removed agent permanently."""
    self._left.add(incarnation)
    self._refused.discard(incarnation)
    writer = self._writers.pop(incarnation, None)
    for one in (*self._heard.pop(incarnation, ()), *([writer] if writer else [])):
      one.transport.abort()  # The peer may never read the rest.

  async def close(self) -> None:
    """Closes all connections, after all messages have gone out."""
    if self._server is not None:
      self._server.close()
    for writer in list(self._writers.values()):
      with contextlib.suppress(OSError, TimeoutError):
        await asyncio.wait_for(writer.drain(), 1.0)
      writer.close()
    while self._tasks:  # New connections have one too.
      for task in self._tasks:
        task.cancel()
      await asyncio.wait(self._tasks)

  # Connections to others.

  async def _reach(self, member: views.Member, on_accepted: Callable[[], None]) -> _Streams:
    """Connects and greets; retries for a while if the connection breaks.

    A broken connection is no evidence about the agent: the host had accepted
    it. If the process is gone, the next connection is refused.
    """
    now = asyncio.get_running_loop().time
    end_secs = now() + _BREAKS_SECS
    while True:
      try:
        reader, writer = await self._open(member, on_accepted)
        try:
          async with asyncio.timeout(HELLO_SECS):
            self._identity.check(writer.get_extra_info("ssl_object"), "agent", member.name)
            said = await messages.read(reader, messages.GREETING, _HELLO_BYTES)
          own = self._hello()
          if said.member.incarnation != member.incarnation:
            raise GoneError("another agent has its address now")
          if said.stamp != own.stamp:
            raise GoneError("it is of another run")
          writer.write(messages.encode(own))
          return reader, writer
        except BaseException:
          writer.close()
          raise
      except (ConnectionResetError, ConnectionAbortedError, BrokenPipeError):
        if now() > end_secs:
          raise
        await asyncio.sleep(_BROKE_SECS)

  async def _open(self, member: views.Member, on_accepted: Callable[[], None]) -> _Streams:
    connection = None
    async with asyncio.timeout(_CONNECT_SECS):
      while connection is None:
        try:
          connection = await asyncio.wait_for(
              _connect(member.host, member.port, self._ack_secs), _TRY_SECS
          )
        except TimeoutError:
          continue
        except OSError as error:
          if error.errno not in _OWN_ERRORS:
            raise
          logging.warning("Cannot connect to %s: %s", member.name, error)
          await asyncio.sleep(_RETRY_SECS)
    if member.incarnation in self._refused:
      self._refused.remove(member.incarnation)
      on_accepted()
    try:
      return await asyncio.open_connection(
          sock=connection,
          ssl=self._identity.client,
          ssl_handshake_timeout=HELLO_SECS,
          server_hostname="",  # Names are those of nodes.
      )
    except BaseException:
      connection.close()
      raise

  # Connections of others.

  def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    transport: Any = writer.transport
    transport.pause_reading()  # What comes first is of TLS.
    task = asyncio.create_task(self._let_in(reader, writer))
    self._tasks.add(task)
    task.add_done_callback(self._tasks.discard)
    task.add_done_callback(lambda _: writer.close())  # Also if it is cancelled before it starts.

  async def _let_in(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Hears an agent that has connected, until it ends; rejects all others."""
    connection = writer.get_extra_info("socket")
    self._strangers.add(connection)
    try:
      try:
        await writer.start_tls(self._identity.server, ssl_handshake_timeout=HELLO_SECS)
      finally:
        self._strangers.remove(connection)
      async with asyncio.timeout(HELLO_SECS):
        other = writer.get_extra_info("ssl_object")
        self._identity.check(other, "agent")
        writer.write(messages.encode(self._hello()))
        member = (await messages.read(reader, messages.GREETING, _HELLO_BYTES)).member
        self._identity.check(other, "agent", member.name)
    except (OSError, ValueError, EOFError) as error:
      said, address = str(error) or type(error).__name__, writer.get_extra_info("peername")
      self._refusals.warn("Refused a connection from %s: %s", address, said)
      return
    if (who := member.incarnation) in self._left:
      return
    heard = self._heard.setdefault(who, set())
    heard.add(writer)
    self._on_came(member)
    try:
      while True:
        self._on_message(who, await messages.read(reader, messages.FROM_AGENT))
    except (asyncio.CancelledError, EOFError):
      return  # This agent ends, or that one.
    except (OSError, ValueError) as error:
      logging.warning("%s broke its connection: %s", member.name, error)
    finally:
      heard.discard(writer)


async def _connect(host: str, port: int, ack_secs: float) -> socket.socket:
  try:
    numeric = socket.AI_NUMERICHOST
    family, address = addresses.find(host, port, flags=numeric)
  except socket.gaierror:
    family, address = await asyncio.to_thread(addresses.find, host, port)
  connection = socket.socket(family, socket.SOCK_STREAM)
  ack_ms = round(1000 * ack_secs)
  connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, ack_ms)
  _ease(connection)
  try:
    connection.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connection, address)
  except BaseException:
    connection.close()
    raise
  return connection


def _ease(connection: socket.socket) -> None:
  """Prepares a socket of agents for lost machines, lossy links and small MTUs."""
  for option, value in _OPTIONS.items():
    try:
      connection.setsockopt(*option, value)
    except PermissionError as error:  # The machine does not allow it.
      logging.log_first_n(logging.INFO, "Option %s: %s", 1, option, error)


async def _find_end(reader: asyncio.StreamReader) -> str:
  """Returns why a connection has ended, once it has."""
  try:
    await reader.read(1)  # The peer never writes here: this is the end.
  except OSError as error:
    return f"the connection broke: {error}"
  return "the connection was closed"
