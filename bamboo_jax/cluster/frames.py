"""Frames: JSON objects, each with its length in front.

A foreign peer is rejected at its first frame: too long, or no JSON object.
"""

from collections.abc import Mapping
import json
import struct
from typing import Any

_LENGTH = struct.Struct(">I")
MAX_BYTES = 16 << 20

Message = dict[str, Any]


class BadFrameError(ValueError):
  """A frame that is not of this protocol."""


def encode(message: Mapping[str, Any]) -> bytes:
  """Returns a message as bytes; its values are plain JSON."""
  body = json.dumps(message, separators=(",", ":")).encode()
  if len(body) > MAX_BYTES:
    raise ValueError(f"A message has {len(body)} bytes, at most {MAX_BYTES}.")
  return _LENGTH.pack(len(body)) + body


class Decoder:
  """Splits a stream of bytes into messages of at most `max_bytes`."""

  def __init__(self, max_bytes: int = MAX_BYTES) -> None:
    self.max_bytes = max_bytes
    self._buffer = bytearray()

  def feed(self, data: bytes) -> list[Message]:
    """Returns the messages that `data` completes.

    After a `BadFrameError` it cannot be used again.
    """
    self._buffer += data
    messages = []
    while len(self._buffer) >= _LENGTH.size:
      (length,) = _LENGTH.unpack_from(self._buffer)
      if length > self.max_bytes:
        raise BadFrameError(f"a message of {length} bytes, at most {self.max_bytes} are taken")
      end = _LENGTH.size + length
      if len(self._buffer) < end:
        break
      messages.append(_parse(bytes(self._buffer[_LENGTH.size : end])))
      del self._buffer[:end]
    return messages


def _parse(body: bytes) -> Message:
  try:
    message = json.loads(body)
  except (ValueError, RecursionError) as error:
    raise BadFrameError(f"not JSON: {body[:40]!r}") from error
  if not isinstance(message, dict):
    raise BadFrameError(f"not a JSON object: {body[:40]!r}")
  return message
