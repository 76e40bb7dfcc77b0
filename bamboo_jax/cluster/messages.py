"""Messages between processes of a cluster, one class each.

A message is sent as a JSON object: its class as `kind`, and its fields. The
tables below list the messages of each direction.
"""

from collections.abc import Mapping
import dataclasses
from typing import Any

from bamboo_jax import base
from bamboo_jax.base import json as json_lib
from bamboo_jax.cluster import frames, views

FINISHED = "finished"  # The last key that a worker posts.


@dataclasses.dataclass(frozen=True)
class Greeting:
  """The first message of an agent to another that connects.

  `stamp` identifies the run, so that leftovers of an older one are ignored.
  """

  incarnation: str
  stamp: str


@dataclasses.dataclass(frozen=True)
class Hello:
  """The answer to `Greeting`: the identity of the agent."""

  member: views.Member


@dataclasses.dataclass(frozen=True)
class Post:
  """A value for all members of a view, see `agent.board`; plain JSON."""

  view: base.ViewId
  key: str
  value: Any


@dataclasses.dataclass(frozen=True)
class Beat:
  """A heartbeat of an agent."""


@dataclasses.dataclass(frozen=True)
class Ready:
  """The worker of an agent has compiled its programs, and is ready to be a member.

  `origin` is the number of the view without members that it starts from, 0 in a
  new folder; None if it joins others.
  """

  origin: base.ViewId | None = None


@dataclasses.dataclass(frozen=True)
class NewView:
  """A view has been made.

  `silent`: for how long, as the agent adopted the view, the nodes that it removes had been
  silent, by number; told to workers.
  """

  view: views.View
  silent: dict[base.NodeId, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Notice:
  """The node of an agent will be preempted, or its worker is slow: others take over."""

  reason: str


@dataclasses.dataclass(frozen=True)
class Gone:
  """The sender is no longer a member, as its worker has ended or handed over.

  `silent_secs`: how long its worker had been silent; None if it left on notice.
  """

  reason: str
  silent_secs: float | None = None


@dataclasses.dataclass(frozen=True)
class Suspect:
  """An agent that another one cannot reach, or does not hear.

  `is_certain` if connections are refused, as after the end of the process.
  """

  incarnation: str
  reason: str
  is_certain: bool


@dataclasses.dataclass(frozen=True)
class Suspects:
  """All suspicions of the sender; `count` grows with each change."""

  count: int
  suspects: tuple[Suspect, ...]


@dataclasses.dataclass(frozen=True)
class Assignment:
  """The assignment of layers to nodes, for joining nodes; empty if none.

  Contains `restart` if the run starts from a checkpoint.
  """

  facts: Any


@dataclasses.dataclass(frozen=True)
class Adopt:
  """The worker works in a view from now on."""

  view: base.ViewId


@dataclasses.dataclass(frozen=True)
class WorkerBeat:
  """A heartbeat of a worker.

  `progress` grows with all work; `is_waiting` if the worker waits, for others or
  on purpose; `step` is the last committed step, for logs.
  """

  progress: int
  is_waiting: bool
  step: base.StepId = base.StepId(0)


@dataclasses.dataclass(frozen=True)
class Report:
  """Progress of training, for `bamboo status`; plain JSON by name."""

  facts: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Doubt:
  """The worker asks whether it is still a member; its agent repeats it if so.

  It may have been suspended, or an awaited message came after a long silence.
  """


@dataclasses.dataclass(frozen=True)
class Done:
  """The worker has finished the run, and ends; so does its agent."""


@dataclasses.dataclass(frozen=True)
class Failed:
  """An error that every node would meet has ended the run, which is saved."""

  reason: str


@dataclasses.dataclass(frozen=True)
class Gathered:
  """The values that all members of a view have posted under a key."""

  view: base.ViewId
  key: str
  values: dict[base.NodeId, Any]


@dataclasses.dataclass(frozen=True)
class Trouble:
  """Whether members are gone or suspected, and a view without them is due."""

  is_due: bool


def _table(*classes: type) -> dict[str, type]:
  return {cls.__name__: cls for cls in classes}


HANDSHAKE = _table(Greeting, Hello)
FROM_AGENT = _table(*(Post, Beat, Ready, NewView, Notice, Gone, Suspects, Done, Assignment, Failed))
FROM_WORKER = _table(
    *(Post, Adopt, WorkerBeat, Ready, Assignment, Report, Doubt, Done, Notice, Gone, Failed)
)
TO_WORKER = _table(Gathered, NewView, Doubt, Assignment, Trouble)


def encode(message: Any) -> bytes:
  kind = type(message).__name__
  return frames.encode({"kind": kind, **json_lib.to_plain(message)})


def parse(content: Mapping[str, Any], table: Mapping[str, type]) -> Any:
  """Returns a message of `table`; raises `BadFrameError` if it is none."""
  fields = dict(content)
  kind = fields.pop("kind", None)
  if kind not in table:
    raise frames.BadFrameError(f"unknown message of kind {kind!r}")
  try:
    return json_lib.from_plain(table[kind], fields)
  except ValueError as error:
    raise frames.BadFrameError(f"not a message: {error}") from error
