"""The worker's side of the protocol with its agent; no I/O.

A wait is a generator: it yields a condition and a timeout in seconds (or None),
and is sent whether the condition held in time; then it returns its result.
`client.Client` waits in threads, the simulation in virtual time.
"""

from collections.abc import Callable, Generator
from typing import Any

from bamboo_jax import base
from bamboo_jax.cluster import messages, views
from bamboo_jax.schedule import channel as channel_lib

_AWAY_BEATS = 5  # After as many missed beats it may be removed.

Wait = Generator[tuple[Callable[[], bool], float | None], bool | None, Any]


class ClientState:
  """What the worker of node `number` knows; `adopted` is the view it works in.

  `step` is the last step that is known here, for logs.
  """

  def __init__(
      self,
      number: base.NodeId,
      *,
      send: Callable[[Any], None],
      on_lost: Callable[[views.View], Any],
      begun: Callable[[], channel_lib.Begun],
      now: Callable[[], float],
      heartbeat_secs: float,
      silence_secs: float,
  ) -> None:
    """Starts before the first message.

    Args:
      send: Sends one of `messages.FROM_WORKER`.
      on_lost: Called with the new view when it lacks a member of the adopted
        one; its result is posted there as "begun". Called once with an empty
        view before the first.
      begun: Returns the transfers that this worker is waiting for: as long as it
        waits for others, it does not hang.
      now: Returns the time in seconds, on a clock that runs in a suspended
        machine.
      silence_secs: After this silence others may have removed this node.
    """
    self.number, self.step = number, base.StepId(0)
    self.adopted = self.newest = views.EMPTY
    self._interrupt = views.EMPTY
    self._send, self._on_lost, self._find_begun = send, on_lost, begun
    self._now, self._heartbeat_secs = now, heartbeat_secs
    self._silence_secs = silence_secs
    self._views: dict[base.ViewId, views.View] = {}
    self._gathered: dict[tuple[base.ViewId, str], dict[base.NodeId, Any]] = {}
    self._facts: Any = None
    self._posted: list[tuple[base.ViewId, str]] = []
    self._progress = 0
    self._is_waiting = self._is_in_doubt = self._is_in_trouble = False
    self._beat_secs = now()

  @property
  def is_interrupted(self) -> bool:
    """Whether a newer view lacks a member of the adopted one."""
    return self._interrupt.number > self.adopted.number

  def note_progress(self) -> None:
    """Reports progress, with the next heartbeat."""
    self._progress += 1

  def hear(self, message: Any) -> None:
    """Takes one of `messages.TO_WORKER`."""
    match message:
      case messages.NewView(view=view):
        self._see(view)
      case messages.Gathered(view, key, values):
        self._gathered[view, key] = values
      case messages.Doubt():
        self._is_in_doubt = False
      case messages.Trouble(is_due):
        self._is_in_trouble = is_due
      case messages.Assignment(facts):
        self._facts = facts

  def post(self, view: base.ViewId, key: str, value: Any) -> None:
    """Posts a value for all members of a view; of each key the first counts.

    A joining node may post in a later view before it adopts one.
    """
    if (view, key) in self._posted:
      return  # Some have received the first, and all must get the same.
    self._posted.append((view, key))
    self._send(messages.Post(view, key, value))

  def adopt(self, view: views.View) -> None:
    """Makes `view` the one that this worker works in."""
    self.adopted = view
    for entry in [e for e in self._gathered if e[0] < view.number]:
      del self._gathered[entry]
    for number in [n for n in self._views if n < view.number]:
      del self._views[number]
    self._posted = [p for p in self._posted if p[0] >= view.number]
    self._send(messages.Adopt(view.number))
    self._stop_if_lost()

  def beat(self) -> None:
    """Sends a heartbeat."""
    self._doubt_if_away()
    self._beat_secs = self._now()
    is_waiting = self._is_waiting or self._waits_for_others()
    self._send(messages.WorkerBeat(self._progress, is_waiting, self.step))

  def _waits_for_others(self) -> bool:
    """Whether this worker needs another to go on, as far as that is a member.

    Connections within a ring may break in silence, so its last node counts as
    working: without it the others go on.
    """
    begun = self._find_begun()
    ring = begun.ring if self.newest.numbers.issuperset(begun.ring) else ()
    return bool(begun.waits_for) or bool(ring) and self.number != max(ring)

  # Waits.

  def on_purpose(self, wait: Wait) -> Wait:
    """Runs `wait`; meanwhile heartbeats report a worker that waits."""
    was_waiting, self._is_waiting = self._is_waiting, True
    try:
      return (yield from wait)
    finally:
      self._is_waiting = was_waiting
      self.note_progress()

  def collect(self, key: str) -> Wait:
    """Returns the values of all members of the adopted view, by number.

    Raises `base.ViewChangedError` if a member is gone.
    """
    entry, since_secs = (self.adopted.number, key), self._now()
    there = lambda: entry in self._gathered or self.is_interrupted
    yield from self.on_purpose(_until(there))
    if entry not in self._gathered:
      raise base.ViewChangedError(self._interrupt.reason)
    self._doubt_if_away()
    if self._now() - since_secs >= self._silence_secs:
      self._doubt()  # Agent or network may have been down.
    if self._is_in_doubt:  # The folder may hang.
      yield from self.on_purpose(_until(lambda: not self._is_in_doubt))
    if entry in self._posted:  # All members have received those before it.
      del self._posted[: self._posted.index(entry)]
    return self._gathered.pop(entry)

  def wait_interrupt(self, timeout_secs: float | None) -> Wait:
    """Returns the next view once it lacks a member; None after the timeout.

    A timeout above 0 starts once the agent suspects no member: until then a
    view is due.
    """
    while not (yield lambda: self.is_interrupted, timeout_secs):
      if not (timeout_secs and self._is_in_trouble):
        return None
    return self._interrupt

  def wait_members(self, count: int) -> Wait:
    """Waits until the newest view has `count` members.

    Raises `base.ViewChangedError` if a member of the adopted view is gone.
    """
    is_full = lambda: len(self.newest.members) >= count
    yield lambda: is_full() or self.is_interrupted, None
    if self.is_interrupted:
      raise base.ViewChangedError(self._interrupt.reason)

  def wait_first(self) -> Wait:
    """Returns the first view with this node; waits for it."""
    yield lambda: self._find_first() is not None, None
    return self._find_first()

  def find_view(self, number: base.ViewId) -> Wait:
    """Returns a view by its number; waits for it if necessary."""
    yield lambda: number in self._views, None
    return self._views[number]

  def wait_facts(self) -> Wait:
    """Returns the members' facts about the run; waits for them."""
    yield lambda: self._facts is not None, None
    return self._facts

  def _doubt_if_away(self) -> None:
    """Asks the agent whether this is a member, after a suspension."""
    away_secs = self._now() - self._beat_secs
    if away_secs > _AWAY_BEATS * self._heartbeat_secs:
      self._doubt()

  def _doubt(self) -> None:
    if not self._is_in_doubt:
      self._is_in_doubt = True
      self._send(messages.Doubt())

  def _see(self, view: views.View) -> None:
    self.newest = self._views[view.number] = view
    if self.adopted.members:
      self._stop_if_lost()
    elif self.number in view.numbers:
      # Members may admit it now or in a later view: see `wait_first`.
      self.post(view.number, "begun", self._on_lost(views.EMPTY))

  def _find_first(self) -> views.View | None:
    found = sorted(v for v, key in self._gathered if key == "begun")
    known = (self._views[number] for number in found)
    return next((v for v in known if v.numbers <= self.newest.numbers), None)

  def _stop_if_lost(self) -> None:
    """Interrupts the step if a newer view lacks a member."""
    known = (view for _, view in sorted(self._views.items()))
    later = (view for view in known if view.number > self.adopted.number)
    found = views.find_successor(self.adopted, later)
    if found is not None and found.number > self._interrupt.number:
      self.post(found.number, "begun", self._on_lost(found))
      self._interrupt = found


def _until(condition: Callable[[], bool]) -> Wait:
  yield condition, None
