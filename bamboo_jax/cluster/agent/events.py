"""Events, actions and requests of the core of an agent.

An event is an input of the core, an action an output. A request is an action
with a result: `Ask` names the waiting flow, `Answered` delivers the result.
"""

from collections.abc import Generator
import dataclasses
from typing import Any

from bamboo_jax import base
from bamboo_jax.cluster import views

# Events.


@dataclasses.dataclass(frozen=True)
class Began:
  """The agent has been started."""


@dataclasses.dataclass(frozen=True)
class Ticked:
  """One heartbeat interval has passed; `is_worker_busy`: it has computed."""

  is_worker_stopped: bool = False
  is_worker_busy: bool = False


@dataclasses.dataclass(frozen=True)
class Noticed:
  """This node will be preempted."""

  reason: str


@dataclasses.dataclass(frozen=True)
class PeerCame:
  """Another agent has opened a connection to this one."""

  member: views.Member


@dataclasses.dataclass(frozen=True)
class PeerAccepted:
  """A host accepts connections to an agent again, after a refusal.

  The agent itself may take a while to answer.
  """

  incarnation: str


@dataclasses.dataclass(frozen=True)
class PeerReached:
  """The connection to another agent is established."""

  incarnation: str


@dataclasses.dataclass(frozen=True)
class PeerSaid:
  """A message of another agent: one of `messages.FROM_AGENT`."""

  incarnation: str
  message: Any


@dataclasses.dataclass(frozen=True)
class PeerFailed:
  """Another agent could not be reached.

  `is_refused` if the connection was refused: the process is gone, or a firewall
  is in between.
  """

  incarnation: str
  reason: str
  is_refused: bool = False


@dataclasses.dataclass(frozen=True)
class PeerClosed:
  """The connection to another agent is closed; the agent may be alive."""

  incarnation: str
  reason: str


@dataclasses.dataclass(frozen=True)
class WorkerSaid:
  """A message of the worker: one of `messages.FROM_WORKER`."""

  message: Any


@dataclasses.dataclass(frozen=True)
class WorkerExited:
  """The worker has ended, with this return code."""

  code: int


@dataclasses.dataclass(frozen=True)
class Answered:
  """A request of a flow has succeeded or failed."""

  flow: int
  answer: Any = None
  error: Exception | None = None


# Actions.


@dataclasses.dataclass(frozen=True)
class DialAgent:
  """Opens a connection to another agent; replaces the former one."""

  member: views.Member


@dataclasses.dataclass(frozen=True)
class Send:
  """Sends one of `messages.FROM_AGENT`, by default to all, if connected."""

  message: Any
  to: tuple[str, ...] | None = None


@dataclasses.dataclass(frozen=True)
class Cut:
  """Closes the connections with an agent permanently."""

  incarnation: str


@dataclasses.dataclass(frozen=True)
class TellWorker:
  """Sends one of `messages.TO_WORKER`."""

  message: Any


@dataclasses.dataclass(frozen=True)
class KillWorker:
  """Kills the worker; unless it is stopped, it writes its stacks first."""


@dataclasses.dataclass(frozen=True)
class Log:
  """Writes a line to the log."""

  text: str
  is_warning: bool = False


@dataclasses.dataclass(frozen=True)
class End:
  """Ends the agent, with an exception or a reason, "" if the run is done."""

  reason: str = ""
  error: Exception | None = None


@dataclasses.dataclass(frozen=True)
class Ask:
  """Carries out a request of a flow; the result arrives as `Answered`."""

  flow: int
  request: Any


# Requests: what a flow can ask for; all but `Sleep` may fail.


@dataclasses.dataclass(frozen=True)
class Sleep:
  """Waits; the result is the time at the end."""

  secs: float


@dataclasses.dataclass(frozen=True)
class CallJudge:
  """Calls a method of `records.Records`, by its name."""

  method: str
  args: tuple[Any, ...] = ()


@dataclasses.dataclass(frozen=True)
class Listen:
  """Starts to accept connections of agents; the result is the port."""


@dataclasses.dataclass(frozen=True)
class StartWorker:
  """Starts the worker of node `number` in the run that `stamp` identifies."""

  number: base.NodeId
  stamp: str


@dataclasses.dataclass(frozen=True)
class WaitNotice:
  """Waits for a preemption notice of the cloud; the result is its text."""


# Yields requests; is sent the results, or has the errors thrown into it.
Flow = Generator[Any, Any, Any]
