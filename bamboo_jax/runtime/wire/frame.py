"""Frames: what two nodes write to each other, as bytes.

  magic kind | text size | number | attempt | seq | ack | payload size
  channel "\\n" meta (UTF-8)
  payload

All integers are big-endian. The magic changes with the protocol, so a peer of
another version is rejected at its first frame.
"""

import dataclasses
import enum
import struct
from typing import Any, NamedTuple

HEADER = struct.Struct(">4sBHIQQQQ")
MAGIC = b"bjw1"


class Kind(enum.IntEnum):
  """Purpose of a frame."""

  HELLO = 1  # First frame of the node that dialled; `seq` is the round.
  WELCOME = 2  # The answer; from then on both ends send data.
  DATA = 3  # A value.
  ACK = 4  # Only acknowledges; also shows that the sender is alive.


class ProtocolError(Exception):
  """The other end does not follow this protocol, or a value is missing."""


@dataclasses.dataclass(frozen=True, slots=True)
class Frame:
  """One frame.

  Attributes:
    attempt: Number of the attempt that a value belongs to.
    channel: Route of a value.
    number: Index of a value among those of its channel and attempt, from 0.
    seq: Sequence number of a value in its direction, from 1; never reset.
    ack: Highest `seq` that the sender of this frame has received.
    meta: Describes the payload of a value; in a greeting, names both nodes.
    payload: Anything of `size` bytes.
  """

  kind: Kind
  attempt: int = 0
  channel: str = ""
  number: int = 0
  seq: int = 0
  ack: int = 0
  meta: str = ""
  payload: Any = b""
  size: int = 0


def encode(frame: Frame) -> bytes:
  """Returns a frame as bytes, without its payload."""
  text = f"{frame.channel}\n{frame.meta}".encode()
  head = HEADER.pack(
      MAGIC, frame.kind, len(text), frame.number, frame.attempt, frame.seq, frame.ack, frame.size
  )
  return head + text


class Header(NamedTuple):
  """A frame without its texts and payload, and the size of its texts."""

  frame: Frame
  text_bytes: int


def decode_header(header: bytes | memoryview) -> Header:
  """Decodes the fixed-size start of a frame.

  Raises:
    ProtocolError: These bytes are no header of this protocol.
  """
  magic, kind, length, number, attempt, seq, ack, size = HEADER.unpack(header)
  if magic != MAGIC:
    raise ProtocolError(
        f"its first bytes are {bytes(header[:4])!r}, not {MAGIC!r}: it runs "
        "another version, or is no worker of a run; install one version of "
        "bamboo_jax on all nodes"
    )
  if kind not in [*Kind]:
    raise ProtocolError(f"unknown kind of frame {kind}")
  frame = Frame(Kind(kind), attempt, number=number, seq=seq, ack=ack, size=size)
  return Header(frame, length)


def decode_text(frame: Frame, text: bytes | memoryview) -> Frame:
  """Returns a frame with its texts; raises `ProtocolError` if not UTF-8."""
  try:
    channel, _, meta = bytes(text).decode().partition("\n")
  except UnicodeDecodeError as error:
    raise ProtocolError(f"a text is not UTF-8: {error}") from error
  return dataclasses.replace(frame, channel=channel, meta=meta)
