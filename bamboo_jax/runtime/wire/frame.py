"""Frames: values as bytes, and the greetings that precede them.

  magic | text size | attempt | number
  channel "\\n" meta (UTF-8)
  the bytes of arrays, which `meta` describes

All integers are big-endian. The magic changes with the protocol, so a peer of
another version is rejected at its first frame.
"""

from collections.abc import Callable, Sequence
import dataclasses
import functools
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
    meta: Describes the payload of a value; in a greeting, names both nodes.
    payload: Arrays.
    size: Their size in bytes.
  """

  attempt: int
  number: int
  channel: str = ""
  meta: str = ""
  payload: list[Any] = dataclasses.field(default_factory=list)
  size: int = 0


def encode(frame: Frame) -> bytes:
  """Returns a frame as bytes, without its payload."""
  text = f"{frame.channel}\n{frame.meta}".encode()
  return HEADER.pack(MAGIC, len(text), frame.attempt, frame.number) + text


def buffers_of(frame: Frame) -> list[Any]:
  """Returns a frame as buffers of bytes.

  Blocks until arrays of JAX are computed and on the host. From then on the
  frame keeps only their copies on the host; on the CPU backend these are the
  arrays' own memory, which must not be donated.
  """
  frame.payload[:] = [np.ascontiguousarray(a) for a in frame.payload]
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
  buffer = empty(sum(_align(size) for _, _, size in kinds))
  arrays, start = [], 0
  for dtype, shape, size in kinds:
    part = buffer[start : start + size]
    if size:
      read_into(part.data)
    arrays.append(part.view(dtype).reshape(shape))
    start += _align(size)
  return dataclasses.replace(frame, payload=arrays, size=sum(a.nbytes for a in arrays))


def empty(size: int) -> np.ndarray:
  """Returns `size` bytes, uint8, at an address that JAX takes without a copy.

  A pool of buffers would not be faster: the C library keeps what is freed, see
  `runtime.allocator`.
  """
  buffer = np.empty(size + _ALIGNMENT, np.uint8)
  start = -buffer.__array_interface__["data"][0] % _ALIGNMENT
  return buffer[start : start + size]


def _align(size: int) -> int:
  return -(-size // _ALIGNMENT) * _ALIGNMENT


def describe(arrays: Sequence[Any]) -> tuple[str, int]:
  """Returns a description of arrays as text, and their size in bytes."""
  size = sum(a.size * a.dtype.itemsize for a in arrays)
  return _describe(tuple((a.dtype, a.shape) for a in arrays)), size


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
