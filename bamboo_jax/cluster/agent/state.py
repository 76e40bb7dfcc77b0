"""The state of an agent, and the flows under way."""

from collections.abc import Callable
import dataclasses
from typing import Any

from bamboo_jax.cluster import messages
from bamboo_jax.cluster import views
from bamboo_jax.cluster.agent import board as board_lib
from bamboo_jax.cluster.agent import events as events_lib
from bamboo_jax.cluster.agent import options as agent_options
from bamboo_jax.cluster.agent import roster as roster_lib
from bamboo_jax.cluster.agent import services as services_lib
from bamboo_jax.cluster.agent import watch as watch_lib

_RETRY_SECS = 0.1


@dataclasses.dataclass
class Ending:
  """How the life of an agent ends.

  Attributes:
    is_near: Whether it ends now, and believes nothing about others.
    fault: Why it has killed its worker, "" if it has not.
    cause: Why its worker has ended, if others may go on without it.
    workerless: Agents that live, and whose worker was killed.
  """

  is_near: bool = False
  fault: str = ""
  cause: str = ""
  workerless: set[str] = dataclasses.field(default_factory=set)
  is_run_over: bool = False


class State:
  """The state of one agent; no other has ever had its incarnation.

  Attributes:
    assignment: Who trains what, as the worker has said; None before.
    status: Progress of training, for `launch.status`.
    is_status_new: Whether the store does not know all of that yet.
    patient_for: Number of the last view that was put off, see `membership`.
  """

  def __init__(
      self, options: agent_options.Options, *, incarnation: str
  ) -> None:
    self.options = options
    self.incarnation = incarnation
    self.roster = roster_lib.Roster(least=options.num_nodes)
    self.board = board_lib.Board()
    self.watch = watch_lib.Watch(options.limits)
    self.services = services_lib.Services(options.era)
    self.ending = Ending()
    self.assignment: messages.Assignment | None = None
    self.status: dict[str, Any] = {}
    self.is_status_new = False
    self.has_worker = False
    self.patient_for = 0
    self.now = 0.0
    self.actions: list[Any] = []
    self._flows: dict[int, events_lib.Flow] = {}
    self._num_flows = 0

  @property
  def is_done(self) -> bool:
    """Whether the worker has finished the run."""
    return self.incarnation in self.roster.done

  @property
  def successor(self) -> agent_options.Options | None:
    """Options of the agent that replaces this one if nobody was left to go on.

    Then all agents that live begin anew, from the last checkpoint; else None.
    """
    if not self.ending.is_run_over:
      return None
    return dataclasses.replace(
        self.options,
        num_nodes=len(self.ending.workerless),
        after_view=self.roster.view.number,
    )

  @property
  def num_kept(self) -> int:
    """Number of values and flows that it keeps, which must not grow."""
    return len(self.board) + len(self._flows)

  # Flows.

  def start(self, flow: events_lib.Flow, *, once: bool = False) -> None:
    """Runs a flow beside the others; not if `once` and its function runs."""
    if once and any(flow.gi_code is f.gi_code for f in self._flows.values()):
      return
    self._num_flows += 1
    self._flows[self._num_flows] = flow
    self.advance(self._num_flows)

  def advance(
      self, number: int, answer: Any = None, error: Exception | None = None
  ) -> None:
    """Runs a flow up to its next request."""
    flow = self._flows[number]
    try:
      request = flow.send(answer) if error is None else flow.throw(error)
      self.do(events_lib.Ask(number, request))
      return
    except StopIteration:
      pass
    except (OSError, ValueError) as failure:
      self.finish(events_lib.End(error=failure))
    del self._flows[number]

  def until_ok(
      self, make_flow: Callable[[], events_lib.Flow]
  ) -> events_lib.Flow:
    """Tries a flow until it succeeds, and returns its result."""
    while True:
      try:
        return (yield from make_flow())
      except OSError as error:
        self.warn(f"{error} Trying again.")
        yield events_lib.Sleep(_RETRY_SECS)

  # Actions.

  def do(self, action: Any) -> None:
    """Adds an action."""
    self.actions.append(action)

  def send(self, message: Any, to: str | None = None) -> None:
    """Sends to an agent, by default to all."""
    self.do(events_lib.Send(message, to))

  def tell_worker(self, message: Any) -> None:
    """Sends to the worker."""
    self.do(events_lib.TellWorker(message))

  def deliver(self, view: int) -> None:
    """Gives the worker the keys that all members of a view have posted."""
    members = {m.number for m in self.roster.members_of(view)}
    for gathered in self.board.take(view, members):
      self.tell_worker(gathered)

  def dial(self, member: views.Member) -> None:
    """Connects to another agent, once."""
    if self.roster.dial(member):
      self.do(events_lib.Dial(member))

  def warn(self, text: str) -> None:
    """Logs a warning."""
    self.do(events_lib.Log(text, is_warning=True))

  def finish(self, end: events_lib.End) -> None:
    """Ends the agent; the first reason counts."""
    if not self.ending.is_near:
      self.ending.is_near = True
      self.do(end)
