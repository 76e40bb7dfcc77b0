"""Messages between processes of a cluster, one class each, and how they travel.

  Hello      both agents of a new connection say who they are
  Post       a value for all members of a view: worker, its agent, other agents
  Beat       a sign of life, of an agent or a worker
  Say        what a node says of itself and of others, or its worker
  NewView    a view: to agents, and to a worker
  Beginning  what a node begins with: to newcomers, and to a worker
  Gathered   what all members have posted: to a worker

A message is MessagePack, which keeps NaN and numbers as keys, with its length in front. A
foreign peer is rejected at its first message: too long, or none of these. Reading is strict:
what does not fit raises `ValueError`, which names the field.
"""

import asyncio
import struct
from typing import Any

import msgspec

from bamboo_jax import base
from bamboo_jax.base import json as json_lib
from bamboo_jax.cluster import views

BEGUN = "begun"  # The first key of a view; posted for a view that is not adopted yet.
FINISHED = "finished"  # The last key that a worker posts.
MAX_BYTES = 16 << 20
_LENGTH = struct.Struct(">I")


class _Message(msgspec.Struct, frozen=True, tag_field="kind", tag=True, forbid_unknown_fields=True):
  """A message; its class is its `kind`."""


class Hello(_Message, frozen=True):
  """The first message of both ends; `stamp` identifies the run, as one before may linger."""

  member: views.Member
  stamp: str


class Post(_Message, frozen=True):
  """A value for all members of a view, see `agent.board`; plain JSON."""

  view: base.ViewId
  key: str
  value: Any


class Beat(_Message, frozen=True):
  """A heartbeat of an agent; or of a worker, which says how it works.

  Attributes:
    progress: Grows with all work.
    is_waiting: Whether the worker waits, for others or on purpose.
    step: The last committed step, for logs.
    view: The view that the worker works in, or that the agent knows.
    doubts: How often the worker has asked whether it is still a member: it may have been
      suspended, or an awaited message came after a long silence.
  """

  progress: int = 0
  is_waiting: bool = False
  step: base.StepId = base.StepId(0)
  view: base.ViewId = base.ViewId(0)
  doubts: int = 0


class Suspect(msgspec.Struct, frozen=True):
  """An agent that another one cannot reach, or does not hear.

  `is_certain` if connections are refused, as after the end of the process.
  """

  incarnation: str
  reason: str
  is_certain: bool


class Say(_Message, frozen=True):
  """What a node says: an agent all of it, whenever some changes; a worker what is new.

  Attributes:
    is_ready: Whether the worker has compiled its programs, and can be a member.
    origin: The view without members that it starts from, 0 in a new folder; None if it joins
      others.
    notice: Why others take over: it will be preempted, or its worker is slow.
    gone: Why it is no member any more: its worker has ended or handed over.
    silent_secs: How long that worker had been silent; None if it left on notice.
    is_done: Whether it has finished the run, and ends.
    failed: The error that ended the run, which is saved; every node would meet it.
    layout: To its own agent: the assignment of layers to nodes, for newcomers.
    report: To its own agent: progress for `bamboo status`, by name.
    suspects: All agents that it suspects.
    count: How often these have changed; reports may overtake each other.
  """

  is_ready: bool = False
  origin: base.ViewId | None = None
  notice: str = ""
  gone: str = ""
  silent_secs: float | None = None
  is_done: bool = False
  failed: str = ""
  layout: dict[str, Any] | None = None
  report: dict[str, Any] | None = None
  suspects: tuple[Suspect, ...] = ()
  count: int = 0


class NewView(_Message, frozen=True):
  """A view has been made; to a worker again whenever the rest changes.

  Attributes:
    is_due: Whether members are gone or suspected, and a view without them is due.
    doubts: After how many doubts of the worker the log still had it in this view.
  """

  view: views.View
  is_due: bool = False
  doubts: int = 0


class Beginning(_Message, frozen=True):
  """The assignment of layers to nodes; empty if none, `restart` in it: from a checkpoint."""

  layout: dict[str, Any]


class Gathered(_Message, frozen=True):
  """The values that all members of a view have posted under a key."""

  view: base.ViewId
  key: str
  values: dict[base.NodeId, Any]


GREETING = msgspec.msgpack.Decoder(Hello)
FROM_AGENT = msgspec.msgpack.Decoder(Post | Beat | Say | NewView | Beginning)
FROM_WORKER = msgspec.msgpack.Decoder(Post | Beat | Say)
TO_WORKER = msgspec.msgpack.Decoder(NewView | Beginning | Gathered)


def encode(message: Any) -> bytes:
  body = msgspec.msgpack.encode(message, enc_hook=_to_python)
  if len(body) > MAX_BYTES:
    raise ValueError(f"A message has {len(body)} bytes, at most {MAX_BYTES}.")
  return _LENGTH.pack(len(body)) + body


def _to_python(value: Any) -> Any:
  """Returns a value of a subclass, such as a `float64` of numpy, as that of Python."""
  for kind in (float, int, str):
    if isinstance(value, kind):
      return kind(value)
  return json_lib.to_plain(value)


def find_length(head: bytes, most: int = MAX_BYTES) -> int:
  """Returns the length of the message behind these four bytes."""
  length: int = _LENGTH.unpack(head)[0]
  if length > most:
    raise ValueError(f"a message of {length} bytes, at most {most} are taken")
  return length


async def read(
    reader: asyncio.StreamReader, kinds: msgspec.msgpack.Decoder[Any], most: int = MAX_BYTES
) -> Any:
  """Returns the next message, of at most `most` bytes; `EOFError` at the end."""
  head = await reader.readexactly(_LENGTH.size)
  return kinds.decode(await reader.readexactly(find_length(head, most)))
