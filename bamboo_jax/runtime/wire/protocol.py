"""Delivery of values from one node to another, and values as bytes; without I/O.

Each direction between two nodes has an `Outbox` at its sender and an `Inbox` at
its receiver. They outlive connections, which are made by the sender. A value
belongs to an attempt, a number that only grows, and within it is numbered over
all channels. The receiver greets a connection with the newest attempt that it
knows, and how many of its values it has; the sender continues from there:

  sender                                    receiver
    |---- hello --------------------------->|
    |<--- attempt 5, has 2 values ----------|
    |---- value 2 of attempt 5 ------------>|
    |---- value 3 ---x                      |  the connection breaks
    |---- hello --------------------------->|
    |<--- attempt 5, has 3 values ----------|
    |---- value 3 ------------------------->|

Values of older attempts are dropped at both ends. Values of a newer attempt are
held until the receiver begins it.

A frame is a value, or one of the greetings that precede them:

  magic | text size | attempt | number
  channel "\\n" meta (UTF-8)
  the bytes of arrays, which `meta` describes

All integers are big-endian. The magic changes with the protocol, so a peer of
another version is rejected at its first frame.
"""

from collections.abc import Callable, Sequence
import dataclasses
import functools
import itertools
import json
import math
import struct
from typing import Any

import ml_dtypes
import numpy as np

HEADER = struct.Struct(">4sIQQ")
MAGIC = b"bjw2"
_MOST_TEXT_BYTES = 1 << 24
_ALIGNMENT = 64  # JAX's CPU backend takes such memory without a copy.

# Fills a view with the next bytes of a connection.
ReadInto = Callable[[memoryview], None]


class ProtocolError(Exception):
  """The other end does not follow this protocol, or a value is missing."""


@dataclasses.dataclass(frozen=True, slots=True)
class Frame:
  """A value, or a greeting.

  Attributes:
    attempt: Number of the attempt that a value belongs to.
    number: Index of a value among those of its attempt and direction; in a
      greeting, how many values its sender has.
    channel: Route of a value.
    meta: Describes the payload of a value that has come; in a greeting, names both
      nodes.
    payload: Arrays.
  """

  attempt: int
  number: int
  channel: str = ""
  meta: str = ""
  payload: list[Any] = dataclasses.field(default_factory=list)

  @property
  def size(self) -> int:
    """Size of the arrays in bytes."""
    return sum(a.nbytes for a in self.payload)


def encode(frame: Frame) -> bytes:
  """Returns a frame as bytes, without its payload."""
  meta = frame.meta or _describe(tuple((a.dtype, a.shape) for a in frame.payload))
  text = f"{frame.channel}\n{meta}".encode()
  return HEADER.pack(MAGIC, len(text), frame.attempt, frame.number) + text


def buffers_of(frame: Frame) -> list[Any]:
  """Returns a frame as buffers of bytes.

  Blocks until arrays of JAX are computed and on the host. From then on the
  frame keeps only their copies on the host; on the CPU backend these are the
  arrays' own memory, which must not be donated.
  """
  frame.payload[:] = [np.asarray(a, order="C") for a in frame.payload]
  return [encode(frame), *(a.reshape(-1).view(np.uint8) for a in frame.payload)]


def read_head(read_into: ReadInto) -> Frame:
  """Returns the next frame, without its payload.

  Raises:
    ProtocolError: The bytes are no frame of this protocol.
  """
  head = bytearray(HEADER.size)
  read_into(memoryview(head))
  magic, length, attempt, number = HEADER.unpack(head)
  if magic != MAGIC:
    raise ProtocolError(
        f"its first bytes are {magic!r}, not {MAGIC!r}: it runs another version, or "
        "is no worker of a run; install one version of bamboo_jax on all nodes"
    )
  if length > _MOST_TEXT_BYTES:
    raise ProtocolError(f"a text of {length} bytes")
  text = bytearray(length)
  read_into(memoryview(text))
  try:
    channel, _, meta = text.decode().partition("\n")
  except UnicodeDecodeError as error:
    raise ProtocolError(f"a text is not UTF-8: {error}") from error
  return Frame(attempt, number, channel, meta)


def read_payload(frame: Frame, read_into: ReadInto) -> Frame:
  """Returns a value with its arrays; raises `ProtocolError` if `meta` describes none."""
  kinds = _parse(frame.meta)
  # One allocation, in which each array begins aligned.
  starts = [*itertools.accumulate((-(-k[2] // _ALIGNMENT) for k in kinds), initial=0)]
  buffer, arrays = empty(_ALIGNMENT * starts.pop()), []
  for (dtype, shape, size), start in zip(kinds, starts, strict=True):
    part = buffer[_ALIGNMENT * start :][:size]
    if size:
      read_into(part.data)
    arrays.append(part.view(dtype).reshape(shape))
  return dataclasses.replace(frame, payload=arrays)


def empty(size: int) -> np.ndarray:
  """Returns `size` bytes, uint8, at an address that JAX takes without a copy.

  A pool of buffers would not be faster: the C library keeps what is freed, see
  `devices.keep_freed_memory`.
  """
  buffer = np.empty(size + _ALIGNMENT, np.uint8)
  start = -buffer.__array_interface__["data"][0] % _ALIGNMENT
  return buffer[start : start + size]


@functools.lru_cache(4096)
def _describe(kinds: tuple[tuple[np.dtype, tuple[int, ...]], ...]) -> str:
  return json.dumps([[dtype.name, list(shape)] for dtype, shape in kinds])


@functools.lru_cache(4096)
def _parse(meta: str) -> tuple[tuple[np.dtype, tuple[int, ...], int], ...]:
  """Returns dtype, shape and size in bytes of each array."""
  try:
    kinds = []
    for name, shape in json.loads(meta):
      dtype = np.dtype(getattr(ml_dtypes, name, name))
      kinds.append((dtype, tuple(shape), math.prod(shape) * dtype.itemsize))
  except (ValueError, TypeError, AttributeError) as error:
    raise ProtocolError(f"a value is described as {meta[:80]!r}") from error
  return tuple(kinds)


class Outbox:
  """Values that the receiver may not have yet.

  Attributes:
    attempt: The attempt that values are sent in.
    num_received: How many values of the attempt the receiver has, as far as is
      known; these are not kept.
    kept_bytes: Size of the others.
  """

  def __init__(self) -> None:
    self.attempt = self.num_received = self.kept_bytes = 0
    self._kept: list[Frame] = []
    self._next = 0  # Number of the next value to write.

  @property
  def num_values(self) -> int:
    return self.num_received + len(self._kept)

  @property
  def has_unsent(self) -> bool:
    return self._next < self.num_values

  def add(self, channel: str, payload: Sequence[Any]) -> None:
    self._kept.append(Frame(self.attempt, self.num_values, channel, payload=[*payload]))
    self.kept_bytes += self._kept[-1].size

  def pull(self) -> Frame:
    """Returns the next value to write, and keeps it."""
    self._next += 1
    return self._kept[self._next - 1 - self.num_received]

  def forget(self, count: int) -> None:
    """Drops the first `count` values of the attempt, as the receiver has them."""
    if not count <= self.num_values:
      raise ProtocolError(f"it has {count} values, of {self.num_values} sent")
    gone = max(count - self.num_received, 0)
    self.kept_bytes -= sum(frame.size for frame in self._kept[:gone])
    del self._kept[:gone]
    self.num_received += gone
    self._next = max(self._next, self.num_received)

  def resume(self, attempt: int, count: int) -> None:
    """Continues on a new connection, which the receiver greets with these.

    Raises:
      ProtocolError: The receiver does not have what it said it has.
    """
    if attempt > self.attempt:  # It takes no value of this attempt any more.
      count = self.num_values
    elif attempt < self.attempt:
      count = 0
    if count < self.num_received:
      raise ProtocolError(f"it has {count} values, and had {self.num_received}")
    self.forget(count)
    self._next = count

  def begin(self, attempt: int) -> None:
    """Begins a newer attempt."""
    self.attempt = attempt
    self.num_received = self.kept_bytes = self._next = 0
    self._kept = []


class Inbox:
  """What the receiver has.

  Attributes:
    attempt: The attempt that values are delivered in.
    newest: The newest attempt of this node and of the values that have come.
    count: How many values of the newest attempt have come.
  """

  def __init__(self) -> None:
    self.attempt = self.newest = self.count = 0
    self._held: list[Frame] = []  # Of the newest attempt, not begun here.

  def accept(self, frame: Frame) -> list[Frame]:
    """Returns the values to deliver now that this one has come.

    Raises:
      ProtocolError: A value is missing.
    """
    if frame.attempt < self.newest:
      return []
    if frame.attempt > self.newest:
      self.newest, self.count, self._held = frame.attempt, 0, []
    if frame.number != self.count:
      raise ProtocolError(
          f"value {frame.number} of attempt {frame.attempt} has come, expected {self.count}"
      )
    self.count += 1
    if frame.attempt == self.attempt:
      return [frame]
    self._held.append(frame)
    return []

  def begin(self, attempt: int) -> list[Frame]:
    """Begins a newer attempt; returns its values that have come before."""
    self.attempt = attempt
    if attempt > self.newest:
      self.newest, self.count, self._held = attempt, 0, []
    if attempt < self.newest:
      return []
    held, self._held = self._held, []
    return held
