"""Connections of a simulated network, as streams of bytes."""

from collections.abc import Callable, Iterator
import dataclasses
import random
import types

from bamboo_jax.runtime.wire import frame as frame_lib

OPEN, CLOSED = "open", "closed"


class FrameCutter:
  """Cuts a stream of bytes into frames of the module `frame`."""

  def __init__(self, frame: types.ModuleType) -> None:
    self._frame, self._buffer = frame, bytearray()

  def feed(self, data: bytes) -> Iterator[frame_lib.Frame]:
    """Yields the frames that `data` completes."""
    self._buffer += data
    size = self._frame.HEADER.size
    while len(self._buffer) >= size:
      frame, length = self._frame.decode_header(bytes(self._buffer[:size]))
      end = size + length + frame.size
      if len(self._buffer) < end:
        return
      text = bytes(self._buffer[size : size + length])
      frame = self._frame.decode_text(frame, text)
      payload = bytes(self._buffer[size + length : end])
      del self._buffer[:end]
      yield dataclasses.replace(frame, payload=payload)


class Pipe:
  """One direction of a connection, towards one end.

  Attributes:
    data: Bytes on their way.
    is_silent: Nothing arrives any more, and nobody is told (half open).
    is_broken: Takes no more bytes.
  """

  def __init__(self, decoder: FrameCutter) -> None:
    self.data, self.decoder = bytearray(), decoder
    self.is_silent = self.is_broken = False


class Connection:
  """Two ends, 0 and 1.

  Attributes:
    pipes: Towards each end.
    ends: State of each end.
    has_news: Whether an end will be told that the connection is gone.
    has_greeted: Whether the end that was dialled knows who has dialled.
  """

  def __init__(self, number: int, dialler: int, make_decoder: Callable[[], FrameCutter]) -> None:
    self.number, self.dialler = number, dialler
    self.pipes = [Pipe(make_decoder()), Pipe(make_decoder())]
    self.ends = [OPEN, OPEN]
    self.has_news = [False, False]
    self.has_greeted = False

  def __repr__(self) -> str:
    return f"c{self.number}"

  def write(self, side: int, data: bytes) -> None:
    """Writes bytes at one end, towards the other."""
    pipe = self.pipes[1 - side]
    if self.ends == [OPEN, OPEN] and not pipe.is_broken:
      pipe.data += data

  def close(self, side: int, rng: random.Random) -> None:
    """Closes one end; the other learns of it later, or never."""
    if self.ends[side] == CLOSED:
      return
    self.ends[side] = CLOSED
    self.pipes[side].data.clear()
    pipe = self.pipes[1 - side]
    if not pipe.is_silent:
      if rng.random() < 0.5:
        _cut(pipe, rng)
      self.has_news[1 - side] = True

  def break_(self, rng: random.Random) -> None:
    """Breaks both directions at any byte; an end may never learn of it."""
    for side, pipe in enumerate(self.pipes):
      _cut(pipe, rng)
      pipe.is_broken = True
      self.has_news[side] = not pipe.is_silent and rng.random() < 0.8

  def silence(self, rng: random.Random) -> None:
    """Loses all that is written in one direction or both, without a sign."""
    for side in rng.choice(((0,), (1,), (0, 1))):
      self.pipes[side].is_silent = True
      self.has_news[side] = False


def _cut(pipe: Pipe, rng: random.Random) -> None:
  """Loses what is on its way, from any byte on."""
  del pipe.data[rng.randrange(len(pipe.data) + 1) :]
