"""Connections between agents.

Each agent sends on connections that it opens to the others, and reads from
those that they open. When either is closed, the other agent is gone.
"""

import asyncio
from collections.abc import Coroutine
import contextlib
from typing import Any

from absl import logging

from bamboo_jax.cluster import auth
from bamboo_jax.cluster import frames
from bamboo_jax.cluster import messages
from bamboo_jax.cluster import views
from bamboo_jax.cluster.agent import events as events_lib

_HELLO_SECS = 30.0  # A crowded machine may take a while.
_CONNECT_SECS = 5.0
_HELLO_BYTES = 1 << 16
_CHUNK = 1 << 16


class Peers:
  """The connections to other agents, by incarnation; `events` gets the news."""

  def __init__(
      self, *, run: str, secret: bytes, events: asyncio.Queue[Any]
  ) -> None:
    self._run = run
    self._secret = secret
    self._events = events
    self._writers: dict[str, asyncio.StreamWriter] = {}
    self._heard: dict[str, asyncio.StreamWriter] = {}  # Opened by others.
    self._unsaid: dict[str, bytearray] = {}  # Until there is a connection.
    self._lost: set[str] = set()
    self._tasks: set[asyncio.Task] = set()
    self._server: asyncio.Server | None = None

  async def listen(self, host: str) -> int:
    """Starts to accept connections; returns the port."""
    self._server = await asyncio.start_server(self._accept, host, 0)
    return self._server.sockets[0].getsockname()[1]

  def dial(self, member: views.Member, *, me: views.Member) -> None:
    """Opens a connection to an agent; once."""
    if member.incarnation not in self._lost:
      self._unsaid[member.incarnation] = bytearray()
      self._start(self._connect(member, me))

  def send(self, incarnation: str, message: Any) -> None:
    """Sends to one agent, once connected; drops it if that one is gone."""
    writer = self._writers.get(incarnation)
    if writer is None:
      if incarnation in self._unsaid:
        self._unsaid[incarnation] += messages.encode(message)
    elif not writer.is_closing():
      writer.write(messages.encode(message))

  def send_all(self, message: Any) -> None:
    """Sends to all agents that are connected."""
    data = messages.encode(message)
    for writer in list(self._writers.values()):
      if not writer.is_closing():
        writer.write(data)

  def forget(self, incarnation: str) -> None:
    """Closes the connections with an agent that is believed to be dead."""
    self._lost.add(incarnation)
    self._unsaid.pop(incarnation, None)
    for writers in (self._writers, self._heard):
      writer = writers.pop(incarnation, None)
      if writer is not None:
        writer.transport.abort()  # It may never take what is left to say.

  async def close(self) -> None:
    """Closes all connections, after all messages have gone out."""
    for writer in list(self._writers.values()):
      with contextlib.suppress(OSError, TimeoutError):
        await asyncio.wait_for(writer.drain(), 1.0)
      writer.close()
    for task in self._tasks:
      task.cancel()
    if self._server is not None:
      self._server.close()

  def _start(self, work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.get_running_loop().create_task(work)
    self._tasks.add(task)
    task.add_done_callback(self._tasks.discard)

  async def _connect(self, member: views.Member, me: views.Member) -> None:
    known = member.incarnation
    try:
      reader, writer = await self._open(member)
      with contextlib.closing(writer):
        await self._greet(reader, writer, me)
        if known in self._lost:
          return
        self._writers[known] = writer
        self._events.put_nowait(events_lib.PeerReached(known))
        writer.write(self._unsaid.pop(known))
        await reader.read(1)  # Nothing is ever said here: it is the end.
      reason = "its agent closed the connection"
    except (OSError, TimeoutError, frames.BadFrameError, EOFError) as error:
      reason = f"its agent cannot be reached: {error or type(error).__name__}"
    self._lose(known, reason)

  async def _greet(
      self,
      reader: asyncio.StreamReader,
      writer: asyncio.StreamWriter,
      me: views.Member,
  ) -> None:
    """Proves to an agent that this one belongs here."""
    decoder = frames.Decoder(_HELLO_BYTES)
    said = await asyncio.wait_for(_read(reader, decoder), _HELLO_SECS)
    word = messages.parse(said[0], messages.HANDSHAKE).word
    answer = auth.answer(word, secret=self._secret)
    writer.write(messages.encode(messages.Hello(self._run, answer, me)))

  async def _open(
      self, member: views.Member
  ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connects; tries again if there is no answer, which is no refusal."""
    while True:
      try:
        return await asyncio.wait_for(
            asyncio.open_connection(member.host, member.port), _CONNECT_SECS
        )
      except TimeoutError:
        if member.incarnation in self._lost:
          raise
        logging.warning("%s does not answer. Trying again.", member.name)

  async def _accept(
      self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
  ) -> None:
    """Reads from an agent until it is gone; refuses strangers."""
    task = asyncio.current_task()
    self._tasks.add(task)
    task.add_done_callback(self._tasks.discard)
    try:
      member, decoder, said = await asyncio.wait_for(
          self._welcome(reader, writer), _HELLO_SECS
      )
    except (OSError, ValueError, EOFError, TimeoutError) as error:
      logging.warning(
          "Refused a connection from %s: %s",
          writer.get_extra_info("peername"),
          error or type(error).__name__,
      )
      writer.close()
      return
    self._heard[member.incarnation] = writer
    self._events.put_nowait(events_lib.PeerCame(member))
    reason = "its agent closed the connection"
    try:
      while True:
        for content in said:
          message = messages.parse(content, messages.FROM_AGENT)
          self._events.put_nowait(
              events_lib.PeerSaid(member.incarnation, message)
          )
        if not (data := await reader.read(_CHUNK)):
          break
        said = decoder.feed(data)
    except asyncio.CancelledError:
      return  # This agent ends.
    except (OSError, frames.BadFrameError) as error:
      reason = f"its agent broke the connection: {error}"
    finally:
      writer.close()
    self._lose(member.incarnation, reason)

  async def _welcome(
      self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
  ) -> tuple[views.Member, frames.Decoder, list[frames.Message]]:
    """Returns an agent that has proved to belong here; its first messages."""
    word = auth.make_challenge()
    writer.write(messages.encode(messages.Challenge(word)))
    decoder = frames.Decoder(_HELLO_BYTES)
    first, *said = await _read(reader, decoder)
    hello = messages.parse(first, messages.HANDSHAKE)
    if not isinstance(hello, messages.Hello):
      raise ValueError("it does not say hello")
    if hello.run != self._run:
      raise ValueError(f"it is of another run, {hello.run!r}")
    if not auth.is_right(word, hello.answer, secret=self._secret):
      raise ValueError("it does not know the secret")
    decoder.max_bytes = frames.MAX_BYTES
    return hello.member, decoder, said

  def _lose(self, incarnation: str, reason: str) -> None:
    if incarnation not in self._lost:
      self.forget(incarnation)
      self._events.put_nowait(events_lib.PeerLost(incarnation, reason))


async def _read(
    reader: asyncio.StreamReader, decoder: frames.Decoder
) -> list[frames.Message]:
  while data := await reader.read(_CHUNK):
    if messages := decoder.feed(data):
      return messages
  raise EOFError("it was closed at once")
