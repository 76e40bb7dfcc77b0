"""The options and the state of an agent, and the flows under way."""

from collections.abc import Callable, Iterable, Sequence
import dataclasses
import math
from typing import Any

from bamboo_jax import base, config as config_lib
from bamboo_jax.cluster import messages, notices as notices_lib, views
from bamboo_jax.cluster.agent import events as events_lib
from bamboo_jax.cluster.agent.knowledge import (
    board as board_lib,
    roster as roster_lib,
    suspicion as suspicion_lib,
    watch as watch_lib,
)

_RETRY_SECS = 0.1
_WARN_SECS = 10.0
# How long a joining or restarting node waits for the judge.
_GIVE_UP_SECS, _AGAIN_GIVE_UP_SECS = 15.0, 300.0


@dataclasses.dataclass(frozen=True)
class AgentOptions:
  """The options of an agent; `notices`, if given, polls for preemptions.

  Attributes:
    workdir: Folder of the run's files, shared by all nodes.
    host: Address to listen on, which others connect to.
    num_nodes: Number of nodes that the first view waits for.
    place: Returns the numbers of the first nodes from their zones; otherwise
      numbers follow the order of joining.
    config: What all nodes must agree on, by name; plain JSON values.
    command: Starts the worker; the number of the node, the stamp of the run,
      the age of the agent in seconds, and the number of the socket are
      appended.
    machine: See `judge.find_machine`.
    is_again: Whether the node restarts after it was in the run before.
  """

  name: str
  zone: str
  workdir: str
  host: str
  num_nodes: int
  place: Callable[[dict[base.NodeId, str]], dict[base.NodeId, int]]
  config: dict[str, Any]
  command: Sequence[str]
  log: str
  limits: config_lib.ClusterSection
  machine: str = ""
  notices: notices_lib.Poller | None = None
  is_again: bool = False


class AgentState:
  """The state of one agent, whose `incarnation` is unique in the run."""

  def __init__(self, options: AgentOptions, *, incarnation: str) -> None:
    self.options = options
    self.incarnation = incarnation
    self.roster = roster_lib.AgentRoster()
    self.board = board_lib.Board()
    self.watch = watch_lib.HeartbeatWatch(options.limits)
    self.suspicions = suspicion_lib.Suspicions(incarnation)
    self.now = 0.0
    self.actions: list[Any] = []
    self._flows: dict[int, events_lib.Flow] = {}
    self._num_flows = 0
    self._warned_secs: dict[str, float] = {}
    # The judge.
    self.run = base.ViewId(0)  # The view from which the run began.
    self.stamp = ""  # Identity of the run; "" before it is known.
    self.folder_secs = math.inf  # Since when it has not answered.
    self.marked_secs = -math.inf  # When this agent last showed its address.
    self.status: dict[str, Any] = {}  # For `bamboo status`.
    self.is_status_new = False  # Whether some of it has not been written.
    # Other agents.
    self.connected: set[str] = set()
    self.unreachable: dict[str, messages.Suspect] = {}  # When last tried.
    self.dialed_secs: dict[str, float] = {}  # Last, after one was closed.
    self.suspects = messages.Suspects(0, ())
    self.received: messages.Assignment | None = None  # From a member.
    self.beaten_secs = -math.inf  # When the last heartbeat was sent.
    # How the worker begins.
    self.is_short = False  # Whether some first nodes did not join in time.
    self.has_origin = False  # Whether that is known.
    # The view without members from which it begins, 0 for the beginning of the
    # run; None if it joins others, or before it is known.
    self.origin: base.ViewId | None = None
    self.epoch = 0  # That of the view when it became known.
    # The worker.
    self.has_worker = False
    self.ready_secs = 0.0  # When it had compiled.
    self.assignment: messages.Assignment | None = None  # As it reported.
    self.heard: set[str] = set()  # Agents, since the newest view.
    self.is_in_trouble = False  # As in the last `messages.Trouble` sent to it.
    # The next view, and the end.
    self.patient_for = 0  # Number of the last view that was put off.
    self.decided_secs = float("-inf")  # When it last decided.
    self.due = (0, 0.0)  # Number of the view that is due, and since when.
    self.over_secs: float | None = None  # Since when all seem dead.
    self.num_answers = 0  # How often a member was alive after all.
    self.is_ending = False  # Then it ignores news about others.
    self.must_restart = False  # With a new worker.
    self.has_left = False  # Whether others have taken over, before the run was done.
    self.fault = ""  # Why it has killed its worker, "" if it has not.
    self.is_mistake = False  # Whether a mistake of the user has ended it.
    self.cause = ""  # Why its worker has ended, if others may continue.

  @property
  def awake(self) -> float:
    """The time, on a clock that stops while this agent is suspended."""
    return self.watch.awake(self.now)

  @property
  def is_done(self) -> bool:
    return self.incarnation in self.roster.done

  @property
  def num_kept(self) -> int:
    """Number of values and flows kept; must not grow."""
    return len(self.board) + len(self._flows)

  # Flows.

  def start(self, flow: events_lib.Flow, *, once: bool = False) -> None:
    """Starts a flow; with `once` not if one of the same function runs."""
    code_of = lambda flow: flow.gi_code
    if once and any(code_of(flow) is code_of(f) for f in self._flows.values()):
      return
    self._num_flows += 1
    self._flows[self._num_flows] = flow
    self.advance(self._num_flows)

  def advance(self, number: int, answer: Any = None, error: Exception | None = None) -> None:
    """Runs a flow up to its next request."""
    flow = self._flows[number]
    try:
      request = flow.send(answer) if error is None else flow.throw(error)
    except StopIteration:  # The flow is done.
      del self._flows[number]
    except (OSError, ValueError) as failure:
      del self._flows[number]
      self.finish(events_lib.End(error=failure))
    else:
      self.do(events_lib.Ask(number, request))

  def until_ok(self, make_flow: Callable[..., events_lib.Flow], *args: Any) -> events_lib.Flow:
    """Tries a flow until it succeeds, and returns its result."""
    while True:
      try:
        return (yield from make_flow(*args))
      except OSError as error:
        self.warn(f"{error} Trying again.")
        yield events_lib.Sleep(_RETRY_SECS)

  def ask(self, make_flow: Callable[..., events_lib.Flow], *args: Any) -> events_lib.Flow:
    """Retries a flow for a while without an answer; then raises `OSError`.

    A joining node may have a wrong address, so it gives up sooner than a
    restarted one.
    """
    patience_secs = _AGAIN_GIVE_UP_SECS if self.options.is_again else _GIVE_UP_SECS
    end_secs = None
    while True:
      try:
        return (yield from make_flow(*args))
      except OSError as error:
        now = yield events_lib.Sleep(_RETRY_SECS)
        end_secs = now + patience_secs if end_secs is None else end_secs
        if now >= end_secs:
          raise
        self.warn(f"{error} Trying again.")

  # Actions.

  def do(self, action: Any) -> None:
    """Adds an action, which the shell carries out after this event."""
    self.actions.append(action)

  def send(self, message: Any, to: Iterable[str] | None = None) -> None:
    """Sends to some agents, by default to all."""
    self.do(events_lib.Send(message, None if to is None else tuple(to)))

  def tell_worker(self, message: Any) -> None:
    self.do(events_lib.TellWorker(message))

  def gone(self, reason: str) -> messages.Gone:
    """Returns the message that the worker has ended."""
    return messages.Gone(reason, self.watch.worker_silent_secs(self.now))

  def deliver(self, view: base.ViewId) -> None:
    """Gives the worker the keys that all members of a view have posted."""
    for gathered in self.board.take(view, self.roster.find_view(view).numbers):
      self.tell_worker(gathered)

  def dial(self, members: Iterable[views.Member]) -> None:
    """Connects to other agents, to each once."""
    for member in members:
      if self.roster.meet(member):
        self.do(events_lib.DialAgent(member))

  def warn(self, text: str) -> None:
    """Logs a warning, the same one at most every few seconds."""
    if self.now >= self._warned_secs.get(text, 0.0):
      # Several flows may word the same problem differently.
      later = {t: s for t, s in self._warned_secs.items() if s > self.now}
      self._warned_secs = {**later, text: self.now + _WARN_SECS}
      self.do(events_lib.Log(text, is_warning=True))

  def finish(self, end: events_lib.End) -> None:
    """Ends the agent; the first reason counts."""
    if not self.is_ending:
      if self.is_done:
        self.send(messages.Done())
      self.is_ending = True
      self.do(end)

  def restart(self, why: str) -> None:
    """Ends this agent; a new one, with a new worker, replaces it."""
    if not self.is_ending:
      self.must_restart = True
      self.finish(events_lib.End(why))
