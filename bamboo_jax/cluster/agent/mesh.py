"""The connections of an agent with the others.

Each agent sends on the connections that it opens, and reads from those that
others open. What a closed connection means `agent` decides.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
import contextlib
import errno
import socket
from typing import Any, NamedTuple

from absl import logging

from bamboo_jax.cluster import door as door_lib, frames, messages, views
from bamboo_jax.net import addresses, identity as identity_lib

_CONNECT_SECS = 5.0
_TRY_SECS = 1.0  # Linux backs off; a new attempt finds a mended link sooner.
_RETRY_SECS = 0.2
_BREAKS_SECS, _BROKE_SECS = 2.0, 0.05  # How long a reset greeting is repeated.
_HELLO_BYTES = 1 << 16
_CHUNK = 1 << 16
# Errors of this agent, no evidence about the other one.
_OWN_ERRORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class _Visitor(NamedTuple):
  member: views.Member
  decoder: frames.Decoder
  messages: list[frames.Message]  # Received with the greeting.


class GoneError(OSError):
  """The process of an agent is gone: connections are refused, or reach another."""


class Mesh:
  """The connections with other agents, by incarnation.

  A connection is closed if the other host acknowledges nothing for `ack_secs`:
  Linux tries for minutes.
  """

  def __init__(self, identity: identity_lib.Identity, *, ack_secs: float) -> None:
    self._identity = identity
    self._ack_secs = ack_secs
    self._door = door_lib.Door(identity, self._hear)
    self._writers: dict[str, asyncio.StreamWriter] = {}
    self._heard: dict[str, set[asyncio.StreamWriter]] = {}  # From others.
    self._left: set[str] = set()
    self._refused: set[str] = set()  # Last attempts.
    self._greeting = messages.Greeting("", "")

  def listen(
      self,
      host: str,
      *,
      greeting: messages.Greeting,
      on_came: Callable[[views.Member], None],
      on_message: Callable[[str, Any], None],
  ) -> int:
    """Starts to accept connections; returns the port.

    `on_came` gets each agent that connects, `on_message` what it says.
    """
    self._greeting, self._on_came, self._on_message = greeting, on_came, on_message
    return self._door.listen(host)

  @contextlib.asynccontextmanager
  async def connect(
      self, member: views.Member, me: views.Member, on_accepted: Callable[[], None]
  ) -> AsyncIterator[Awaitable[str]]:
    """Connects to an agent; yields what returns why the connection has ended.

    `on_accepted` is called once its host accepts connections after a refusal;
    the agent itself may take a while to answer. Raises `GoneError` if its process is gone,
    otherwise `OSError` if it cannot be reached.
    """
    known = member.incarnation
    try:
      reader, writer = await self._reach(member, me, on_accepted)
    except ConnectionRefusedError as error:
      self._refused.add(known)
      raise GoneError("refused") from error
    except GoneError:
      raise
    except (OSError, ValueError, EOFError) as error:
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
    if (writer := self._writers.pop(incarnation, None)) is not None:
      writer.transport.abort()  # The peer may never read the rest.
    for writer in self._heard.pop(incarnation, ()):
      writer.transport.abort()

  async def close(self) -> None:
    """Closes all connections, after all messages have gone out."""
    await self._door.shut()
    for writer in list(self._writers.values()):
      with contextlib.suppress(OSError, TimeoutError):
        await asyncio.wait_for(writer.drain(), 1.0)
      writer.close()
    await self._door.close()

  async def _reach(
      self, member: views.Member, me: views.Member, on_accepted: Callable[[], None]
  ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
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
          await asyncio.wait_for(self._greet(reader, writer, member, me), door_lib.HELLO_SECS)
          return reader, writer
        except BaseException:
          writer.close()
          raise
      except (ConnectionResetError, ConnectionAbortedError, BrokenPipeError):
        if now() > end_secs:
          raise
        await asyncio.sleep(_BROKE_SECS)

  async def _open(
      self, member: views.Member, on_accepted: Callable[[], None]
  ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
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
          ssl_handshake_timeout=door_lib.HELLO_SECS,
          server_hostname="",  # Names are those of nodes.
      )
    except BaseException:
      connection.close()
      raise

  async def _greet(
      self,
      reader: asyncio.StreamReader,
      writer: asyncio.StreamWriter,
      member: views.Member,
      me: views.Member,
  ) -> None:
    """Greets an agent; raises if it is not `member`."""
    other = writer.get_extra_info("ssl_object")
    self._identity.check(other, "agent", member.name)
    said = await _read(reader, frames.Decoder(_HELLO_BYTES))
    greeting = messages.parse(said[0], messages.HANDSHAKE)
    if not isinstance(greeting, messages.Greeting):
      raise ValueError("it sends no valid greeting")
    if greeting.incarnation != member.incarnation:
      raise GoneError("another agent has its address now")
    if greeting.stamp != self._greeting.stamp:
      raise GoneError("it is of another run")
    writer.write(messages.encode(messages.Hello(me)))

  async def _hear(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Reads until the connection ends; raises unless it is of an agent."""
    member, decoder, said = await asyncio.wait_for(
        self._welcome(reader, writer), door_lib.HELLO_SECS
    )
    known = member.incarnation
    if known in self._left:
      return
    heard = self._heard.setdefault(known, set())
    heard.add(writer)
    self._on_came(member)
    try:
      while True:
        for content in said:
          self._on_message(known, messages.parse(content, messages.FROM_AGENT))
        if not (data := await reader.read(_CHUNK)):
          break
        said = decoder.feed(data)
    except asyncio.CancelledError:
      return  # This agent ends.
    except (OSError, frames.BadFrameError) as error:
      logging.warning("%s broke its connection: %s", member.name, error)
    finally:
      heard.discard(writer)

  async def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> _Visitor:
    """Returns the agent at the other end after a valid greeting."""
    writer.write(messages.encode(self._greeting))
    decoder = frames.Decoder(_HELLO_BYTES)
    first, *said = await _read(reader, decoder)
    hello = messages.parse(first, messages.HANDSHAKE)
    if not isinstance(hello, messages.Hello):
      raise ValueError("it does not say hello")
    other = writer.get_extra_info("ssl_object")
    self._identity.check(other, "agent", hello.member.name)
    decoder.max_bytes = frames.MAX_BYTES
    return _Visitor(hello.member, decoder, said)


async def _connect(host: str, port: int, ack_secs: float) -> socket.socket:
  try:
    numeric = socket.AI_NUMERICHOST
    family, address = addresses.find(host, port, flags=numeric)
  except socket.gaierror:
    family, address = await asyncio.to_thread(addresses.find, host, port)
  connection = socket.socket(family, socket.SOCK_STREAM)
  ack_ms = round(1000 * ack_secs)
  connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, ack_ms)
  door_lib.ease(connection)
  try:
    connection.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connection, address)
  except BaseException:
    connection.close()
    raise
  return connection


async def _find_end(reader: asyncio.StreamReader) -> str:
  """Returns why a connection has ended, once it has."""
  try:
    await reader.read(1)  # The peer never writes here: this is the end.
  except OSError as error:
    return f"the connection broke: {error}"
  return "the connection was closed"


async def _read(reader: asyncio.StreamReader, decoder: frames.Decoder) -> list[frames.Message]:
  while data := await reader.read(_CHUNK):
    if messages := decoder.feed(data):
      return messages
  raise EOFError("it was closed at once")
