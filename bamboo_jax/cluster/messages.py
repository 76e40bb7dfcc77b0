"""Messages between processes of a cluster, one class each.

A message travels as a JSON object: its class as `kind`, and its fields. The
tables below say who may send what to whom.
"""

from collections.abc import Mapping
import dataclasses
from typing import Any

from bamboo_jax.base import json as json_lib
from bamboo_jax.cluster import frames
from bamboo_jax.cluster import stalls as stalls_lib
from bamboo_jax.cluster import views

FINISHED = "finished"  # The last key that a worker posts.


@dataclasses.dataclass(frozen=True)
class Greeting:
  """The first message of an agent to another that connects.

  `stamp` is that of its run: one that has begun again in a store without data
  has nothing to do with what is left of the one before.
  """

  incarnation: str
  stamp: str


@dataclasses.dataclass(frozen=True)
class Hello:
  """The answer to `Greeting`: who gives it."""

  member: views.Member


@dataclasses.dataclass(frozen=True)
class Post:
  """A value for all members of a view, see `knowledge.board`; plain JSON."""

  view: int
  key: str
  value: Any


@dataclasses.dataclass(frozen=True)
class Beat:
  """A sign of life of an agent; `stall` if its worker makes no progress.

  `view` is the number of the newest view that it knows; `asks` if it wants one
  back at once.
  """

  stall: stalls_lib.Stall | None = None
  view: int = 0
  asks: bool = False


@dataclasses.dataclass(frozen=True)
class Ready:
  """The worker of an agent could be a member.

  `origin` is the number of the view without members that it begins from, 0 for
  the beginning; None if it joins others.
  """

  origin: int | None = None


@dataclasses.dataclass(frozen=True)
class NewView:
  """A view is in the store."""

  view: views.View


@dataclasses.dataclass(frozen=True)
class Notice:
  """The node of an agent will be preempted."""

  reason: str


@dataclasses.dataclass(frozen=True)
class Gone:
  """The sender is no member any more; if `is_workerless`, its agent lives.

  `silent_secs` is for how long its worker has been silent; None if it left.
  """

  reason: str
  is_workerless: bool = False
  silent_secs: float | None = None


@dataclasses.dataclass(frozen=True)
class Suspect:
  """An agent that another one cannot reach, or does not hear.

  `is_certain` if its address is refused, as when the process is gone.
  """

  incarnation: str
  reason: str
  is_certain: bool


@dataclasses.dataclass(frozen=True)
class Suspects:
  """All that the sender suspects; `count` grows with each change."""

  count: int
  suspects: tuple[Suspect, ...]


@dataclasses.dataclass(frozen=True)
class Assignment:
  """The assignment of layers to nodes, for newcomers; empty if none.

  It has `restart` in it if the run begins from a checkpoint.
  """

  facts: Any


@dataclasses.dataclass(frozen=True)
class Wants:
  """The sender wants what it says to be passed on to others; see `routes`."""

  targets: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Passes:
  """What is said to the sender reaches others from now on.

  What was said before may be lost. `are_all` if it reaches nobody else.
  """

  targets: tuple[str, ...]
  are_all: bool = False


@dataclasses.dataclass(frozen=True)
class Stops:
  """What is said to the sender does not reach others, who may be refused."""

  targets: tuple[str, ...]
  are_refused: bool = False


@dataclasses.dataclass(frozen=True)
class Came:
  """Some agents have come whose messages the sender passes on."""

  members: tuple[views.Member, ...]


@dataclasses.dataclass(frozen=True)
class Via:
  """A message of `SAID` to be passed on."""

  targets: tuple[str, ...]
  message: Any


@dataclasses.dataclass(frozen=True)
class From:
  """A message that is passed on, and whose it is."""

  source: str
  message: Any


@dataclasses.dataclass(frozen=True)
class Adopt:
  """The worker works in a view from now on."""

  view: int


@dataclasses.dataclass(frozen=True)
class WorkerBeat:
  """A sign of life of a worker.

  `progress` grows with whatever it does; `is_waiting` if it is idle on purpose;
  `stall` if it makes no progress for whatever reason.
  """

  progress: int
  is_waiting: bool
  stall: stalls_lib.Stall | None = None


@dataclasses.dataclass(frozen=True)
class WorkerReady:
  """The worker has compiled its programs."""


@dataclasses.dataclass(frozen=True)
class Report:
  """Progress of training, for `bamboo status`; plain JSON by name."""

  facts: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Doubt:
  """The worker asks whether it still is a member.

  It may have been away, or what it waited for has come after a long silence.
  """


@dataclasses.dataclass(frozen=True)
class Done:
  """The worker has finished the run, and ends; so does its agent."""


@dataclasses.dataclass(frozen=True)
class Leave:
  """The worker has handed over what it did, after a notice."""


@dataclasses.dataclass(frozen=True)
class Gathered:
  """The values that all members of a view have posted under a key."""

  view: int
  key: str
  values: dict[int, Any]


@dataclasses.dataclass(frozen=True)
class StillMember:
  """The answer to `Doubt`."""


@dataclasses.dataclass(frozen=True)
class Silent:
  """For how long nodes that the next view lacks had given no sign of life.

  By number; in seconds until the agent adopted `view`. Comes before the view.
  """

  view: int
  secs: dict[int, float]


@dataclasses.dataclass(frozen=True)
class Trouble:
  """Whether members are gone or suspected, and a view without them is due."""

  is_due: bool


def _table(*classes: type) -> dict[str, type]:
  return {cls.__name__: cls for cls in classes}


HANDSHAKE = _table(Greeting, Hello)
SAID = _table(
    *(Post, Beat, Ready, NewView, Notice, Gone, Suspects, Done, Assignment),
)
FROM_AGENT = SAID | _table(Wants, Passes, Stops, Came, Via, From)
FROM_WORKER = _table(
    *(Post, Adopt, WorkerBeat, WorkerReady, Assignment, Report, Doubt, Done),
    Leave,
)
TO_WORKER = _table(
    *(Gathered, NewView, StillMember, Assignment, Silent, Trouble),
)


def encode(message: Any) -> bytes:
  """Returns a message as bytes."""
  return frames.encode(_to_plain(message))


def _to_plain(message: Any) -> dict[str, Any]:
  plain = {"kind": type(message).__name__, **json_lib.to_plain(message)}
  if isinstance(message, (Via, From)):
    plain["message"] = _to_plain(message.message)
  return plain


def parse(content: Mapping[str, Any], table: Mapping[str, type]) -> Any:
  """Returns a message of `table`; raises `BadFrameError` if it is none."""
  fields = dict(content)
  kind = fields.pop("kind", None)
  if kind not in table:
    raise frames.BadFrameError(f"no message of kind {kind!r} is known here")
  try:
    message = json_lib.from_plain(table[kind], fields)
  except ValueError as error:
    raise frames.BadFrameError(f"not a message: {error}") from error
  if isinstance(message, (Via, From)):
    if not isinstance(message.message, Mapping):
      raise frames.BadFrameError(f"nothing to pass on: {message.message!r}")
    inner = parse(message.message, SAID)
    message = dataclasses.replace(message, message=inner)
  return message
