"""A worker that keeps to the protocol, and computes hashes.

It follows `cluster.client` and `train.worker`: it is told facts, compiles,
works in views, votes on each step, and agrees with all others after a loss. Its
state is the hash of the steps it has committed, so whoever goes on from another
state than the others is found.
"""

from collections.abc import Callable, Generator, Mapping
import dataclasses
import hashlib
from typing import Any

from bamboo_jax import base
from bamboo_jax.cluster import messages
from bamboo_jax.cluster import settle
from bamboo_jax.cluster import stalls
from bamboo_jax.cluster import views
from bamboo_jax.cluster.store import fence as fence_lib
from tests.simulation import clock as clock_lib
from tests.simulation import store as store_lib

_INIT_SECS, _COMPILE_SECS, _STEP_SECS = 0.5, 0.5, 0.25
_SAVE_STEPS = 4
_EXPLAIN_SECS = 30.0  # As in `train.worker`.
_BEAT_SECS = 0.25
_STALL_BEATS, _AWAY_BEATS = 10, 5  # As in `cluster.client`.

# Yields how long to wait, or for what; see `Worker._advance`.
_Work = Generator[float | Callable[[], bool], None, None]


@dataclasses.dataclass
class Shared:
  """What workers share: a folder with checkpoints, and who watches.

  Attributes:
    saved: Steps and state of checkpoints.
    on_commit: Called with worker, view, epoch, step and state.
    is_gone: Whether the worker of a host is gone, so a transfer with it fails.
    num_steps: Where training ends.
  """

  on_commit: Callable[["Worker", int, int, int, str], None]
  is_gone: Callable[[str], bool]
  num_steps: int
  saved: dict[int, str] = dataclasses.field(default_factory=dict)
  fence: store_lib.Fence = dataclasses.field(default_factory=store_lib.Fence)


class Worker:
  """One worker; `say` takes its messages, `exit` its return code."""

  def __init__(
      self,
      number: int,
      *,
      clock: clock_lib.Clock,
      shared: Shared,
      say: Callable[[Any], None],
      exit: Callable[[int], None],
  ) -> None:
    self.number = number
    self.is_stopped = False
    self._backlog: list[Any] = []
    self._clock, self._shared = clock, shared
    self._say, self._exit = say, exit
    self._is_over = self._is_waiting = False
    self._is_in_doubt = self._is_in_trouble = False
    self._adopted = self._newest = self._interrupt = views.EMPTY
    self._views: dict[int, views.View] = {}
    self._gathered: dict[tuple[int, str], Mapping[int, Any]] = {}
    self._posted: list[tuple[int, str]] = []
    self._eras: list[int] = []
    self._facts: Mapping[str, Any] | None = None
    self._progress = self._count = 0
    self._last_progress = -1
    self._beat_secs = clock.now
    self._steps, self._state, self._epoch = -1, "", 0
    self._is_ready: Callable[[], bool] | None = None
    self._turn = 0
    self._work = self._live()
    self._advance()
    self._beat()

  @property
  def steps(self) -> int:
    """Number of steps that it has committed; -1 before it has any state."""
    return self._steps

  @property
  def epoch(self) -> int:
    """The view in which training was begun anew; 0 if it never was."""
    return self._epoch

  def hear(self, message: Any) -> None:
    """Takes a message of the agent."""
    if self._is_over:
      return
    if self.is_stopped:
      self._backlog.append(message)
      return
    match message:
      case messages.NewView(view):
        self._see(view)
      case messages.Gathered(view, key, values):
        self._gathered[view, key] = values
      case messages.StillMember():
        self._is_in_doubt = False
      case messages.Trouble(is_due):
        self._is_in_trouble = is_due
      case messages.NewEra(era):
        self._eras.append(era.number)
      case messages.Assignment(facts):
        self._facts = facts
    self._look()

  def end(self) -> None:
    """It is killed."""
    self._is_over = True

  def wake(self) -> None:
    """It runs again after it was stopped."""
    self.is_stopped = False
    backlog, self._backlog = self._backlog, []
    for message in backlog:
      self.hear(message)
    self._look()

  # What a client does.

  def _post(self, view: int, key: str, value: Any) -> None:
    self._posted.append((view, key))
    self._say(messages.Post(view, key, value))

  def _see(self, view: views.View) -> None:
    self._newest = self._views[view.number] = view
    if self._adopted.members:
      self._interrupt_for(self._find_successor())
    elif self.number in view.numbers:
      self._post(view.number, "begun", None)

  def _find_successor(self) -> views.View | None:
    later = [
        v for n, v in sorted(self._views.items()) if n > self._adopted.number
    ]
    found = views.find_successor(self._adopted, later)
    is_known = found is None or found.number <= self._interrupt.number
    return None if is_known else found

  def _interrupt_for(self, view: views.View | None) -> None:
    if view is not None:
      self._post(view.number, "begun", None)
      self._interrupt = view

  def _adopt(self, view: views.View) -> None:
    self._adopted = view
    self._gathered = {
        k: v for k, v in self._gathered.items() if k[0] >= view.number
    }
    self._views = {n: v for n, v in self._views.items() if n >= view.number}
    self._posted = [p for p in self._posted if p[0] >= view.number]
    successor = self._find_successor()
    self._say(messages.Adopt(view.number))
    self._interrupt_for(successor)

  def _is_interrupted(self) -> bool:
    return self._interrupt.number > self._adopted.number

  def _beat(self) -> None:
    if self._is_over:
      return
    if not self.is_stopped:
      self._doubt_if_away()
      self._beat_secs = self._clock.now
      is_idle = self._progress == self._last_progress
      self._count = self._count + 1 if is_idle else 0
      self._last_progress = self._progress
      stall = None
      if self._is_waiting or self._count >= _STALL_BEATS:
        stall = stalls.Stall(
            self._is_waiting,
            self._adopted.number,
            settle.Begun((0, 0), ()),
            tuple(self._posted),
        )
      self._say(messages.WorkerBeat(self._progress, self._is_waiting, stall))
    self._clock.at(_BEAT_SECS, self._beat)

  def _doubt_if_away(self) -> None:
    away_secs = self._clock.now - self._beat_secs
    if away_secs > _AWAY_BEATS * _BEAT_SECS and not self._is_in_doubt:
      self._is_in_doubt = True
      self._say(messages.Doubt())

  # Threads of control: waits for conditions and for time to pass.

  def _advance(self) -> None:
    self._turn += 1
    try:
      wanted = next(self._work)
    except StopIteration:
      return
    except _FailedError:
      self._fail()
      return
    if callable(wanted):
      self._is_ready = wanted
      self._look()
    else:
      self._is_ready = None
      self._clock.at(wanted, self._wake_after, self._turn)

  def _wake_after(self, turn: int) -> None:
    if self._is_over or turn != self._turn:
      return
    if self.is_stopped:
      self._is_ready = lambda: True
    else:
      self._advance()

  def _look(self) -> None:
    if self._is_over or self.is_stopped:
      return
    if self._is_ready is not None and self._is_ready():
      self._is_ready = None
      self._advance()

  def _fail(self) -> None:
    self._is_over = True
    self._exit(1)

  def _waiting(self, is_ready: Callable[[], bool]) -> _Work:
    self._is_waiting = True
    yield is_ready
    self._is_waiting = False
    self._progress += 1

  def _collect(self, key: str) -> Generator[Any, None, Mapping[int, Any]]:
    entry = (self._adopted.number, key)
    yield lambda: entry in self._gathered or self._is_interrupted()
    if entry not in self._gathered:
      raise base.ViewChangedError(self._interrupt.reason)
    self._doubt_if_away()
    yield lambda: not self._is_in_doubt
    self._progress += 1
    return self._gathered.pop(entry)

  def _gather(
      self, key: str, value: Any
  ) -> Generator[Any, None, Mapping[int, Any]]:
    self._post(self._adopted.number, key, value)
    return (yield from self._collect(key))

  # What a worker does.

  def _live(self) -> _Work:
    yield from self._waiting(lambda: bool(self._eras))
    self._say(messages.InEra(max(self._eras)))
    self.claim, _ = self._shared.fence.read()
    yield _INIT_SECS
    yield from self._waiting(lambda: self._facts is not None)
    if not self._facts:
      self._steps = max(self._shared.saved, default=0)
      self._state = self._shared.saved.get(self._steps, "start")
    yield _COMPILE_SECS
    self._say(messages.WorkerReady())
    yield from self._waiting(lambda: self._find_first() is not None)
    self._adopt(self._find_first())
    is_new = True
    while True:
      try:
        if is_new:
          is_new = False
          yield from self._regroup()
        elif self._steps >= self._shared.num_steps:
          yield from self._gather("finished", None)
          self._say(messages.Done())
          self._is_over = True
          self._exit(0)
          return
        else:
          yield from self._step()
      except (base.ViewChangedError, OSError):
        yield from self._recover()

  def _find_first(self) -> views.View | None:
    found = sorted(v for v, key in self._gathered if key == "begun")
    for view in (self._views[number] for number in found):
      if view.numbers <= self._newest.numbers:
        return view
    return None

  def _recover(self) -> _Work:
    while True:
      while not self._is_interrupted():
        end_secs = self._clock.now + _EXPLAIN_SECS
        self._clock.at(_EXPLAIN_SECS + 0.001, self._look)
        yield from self._waiting(
            lambda end_secs=end_secs: self._is_interrupted()
            or self._clock.now >= end_secs
        )
        if not (self._is_interrupted() or self._is_in_trouble):
          raise _FailedError
      self._adopt(self._interrupt)
      try:
        yield from self._regroup()
        return
      except (base.ViewChangedError, OSError):
        continue

  def _regroup(self) -> _Work:
    yield from self._collect("begun")
    status = [self._epoch, self._steps, self._state]
    said = yield from self._gather("status", status)
    epoch, steps, state = max(said.values(), key=lambda s: tuple(s[:2]))
    if steps < 0:  # Nobody has anything: all begin from the checkpoint.
      steps = max(self._shared.saved, default=0)
      state = self._shared.saved.get(steps, "start")
      epoch = self._adopted.number
    elif (
        0 <= self._steps < steps - 1
        or 0 <= self._steps
        and (self._epoch != epoch)
    ):
      raise _FailedError  # Impossible facts.
    elif self._steps == steps - 1 >= 0:
      self._commit()
      assert self._state == state, "states differ"
    self._steps, self._state, self._epoch = steps, state, epoch
    self._say(messages.Assignment({"roles": [self._adopted.number]}))

  def _step(self) -> _Work:
    for _ in range(4):
      yield _STEP_SECS / 4
      if self._is_interrupted():
        raise base.ViewChangedError(self._interrupt.reason)
      if any(self._shared.is_gone(m.host) for m in self._adopted.members):
        raise OSError("a transfer has failed")
      self._progress += 1
    self._check_fence()
    vote = {"seen": max(self._newest.number, self._adopted.number)}
    votes = yield from self._gather(f"vote {self._steps}", vote)
    self._commit()
    seen = min(v["seen"] for v in votes.values())
    if seen > self._adopted.number:
      yield lambda: seen in self._views
      self._adopt(self._views[seen])
      self._post(seen, "begun", None)
      yield from self._regroup()

  def _check_fence(self) -> None:
    claim = dataclasses.replace(self.claim, epoch=self._adopted.epoch)
    try:
      fence_lib.check(self._shared.fence, claim)
    except base.FencedError:
      raise _FailedError from None

  def _commit(self) -> None:
    state = f"{self._state} {self._steps}".encode()
    self._state = hashlib.sha256(state).hexdigest()[:16]
    self._steps += 1
    if self._steps % _SAVE_STEPS == 0:
      self._shared.saved.setdefault(self._steps, self._state)
    self._say(messages.Report({"steps": self._steps}))
    self._shared.on_commit(
        self, self._adopted.number, self._epoch, self._steps, self._state
    )


class _FailedError(Exception):
  """The worker fails by itself."""
