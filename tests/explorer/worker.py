"""A worker that keeps to the protocol, and computes hashes.

It talks as real ones do (`cluster.client`), and follows `training.worker`:
it is told facts, compiles, works in views, votes on each step, and agrees with
all others after a loss. Its state is the hash of the steps it has committed and
of the views that have voted for them; so a worker is found that goes on from
another state than the others, or commits a step together with other members.
"""

from collections.abc import Callable, Generator
import dataclasses
import hashlib
import math
from typing import Any

from bamboo_jax import base
from bamboo_jax.base import json as json_lib
from bamboo_jax.cluster import (
    client as client_lib,
    judge as real_judge,
    messages,
    records as records_lib,
    views,
)
from bamboo_jax.schedule import channel as channel_lib
from tests.explorer import clock as clock_lib, judge as judge_lib

_INIT_SECS, STEP_SECS, _COMPILE_SECS = 0.5, 0.25, 0.5
_SAVE_STEPS = 4
_LAST_SECS = 0.5
_EXPLAIN_SECS = 30.0  # As in `training.worker`.
_BEAT_SECS, _SILENCE_SECS = 0.25, 3.0
_AGAIN_SECS, _PATIENCE_SECS = 0.1, 30.0  # As in `base.ask_again`.

# How long to wait; or for what, and how long at most.
_Wanted = float | tuple[Callable[[], bool], float | None]
_Steps = Generator[_Wanted, bool | None, Any]


@dataclasses.dataclass
class Shared:
  """What workers share: records, checkpoints, and who watches.

  Attributes:
    judge: The records of the run.
    saved: Steps and state of checkpoints.
    on_commit: Called with worker, view, epoch, step and state.
    is_gone: Whether the worker of a host is gone, so a transfer with it fails.
    num_steps: Where training ends.
  """

  judge: judge_lib.Judge
  on_commit: Callable[["ScriptedWorker", int, int, int, str], None]
  is_gone: Callable[[str], bool]
  num_steps: int
  saved: dict[int, str] = dataclasses.field(default_factory=dict)


class _FailedError(Exception):
  """The worker fails by itself."""


class ScriptedWorker:
  """One worker; `say` takes its messages, `exit` its return code.

  Attributes:
    stamp: Of the run, as its agent says.
  """

  def __init__(
      self,
      number: base.NodeId,
      stamp: str,
      *,
      host: str,
      clock: clock_lib.SimulatedClock,
      shared: Shared,
      say: Callable[[Any], None],
      exit: Callable[[int], None],
  ) -> None:
    self.number, self.stamp = number, stamp
    self.is_stopped = self._is_over = False
    self._steps, self._epoch, self._state = -1, 0, ""
    self._clock, self.shared = clock, shared
    self._host, self._num_saves = host, 0  # Under way.
    self._exit = exit
    self._backlog: list[Any] = []
    self.client = client_lib.Client(
        number,
        send=say,
        on_lost=self._on_lost,
        begun=self._begun,
        now=lambda: clock.now,
        heartbeat_secs=_BEAT_SECS,
        silence_secs=_SILENCE_SECS,
        block=lambda wait: wait,
    )
    self._condition: Callable[[], bool] | None = None
    self._turn = 0
    self._late_turn = -1  # Which would have been over while it was stopped.
    self._voted_in = 0  # View in which it has voted last.
    self._work = self._live()
    self._advance(None)
    self._beat()

  @property
  def steps(self) -> int:
    """Steps that it has committed; -1 before it has any state."""
    return self._steps

  @property
  def epoch(self) -> int:
    """The view in which training was begun anew."""
    return self._epoch

  def hear(self, message: Any) -> None:
    """Takes a message of the agent."""
    if self.is_stopped:
      self._backlog.append(message)
    elif not self._is_over:
      self.client.hear(message)
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
    self._wake_after(self._late_turn)

  def _on_lost(self, view: views.View) -> Any:
    """Returns what it posts as "begun" in a view that has lost somebody."""
    return json_lib.to_plain(self._begun())

  def _begun(self) -> channel_lib.Begun:
    return channel_lib.Begun()

  # Threads of control: waits for conditions and for time to pass.

  def _beat(self) -> None:
    if not self._is_over:
      if not self.is_stopped:
        self.client.beat()
        self._look()  # A peer may be gone.
      self._clock.at(_BEAT_SECS, self._beat)

  def _advance(self, held: bool | None) -> None:
    self._turn += 1
    self._condition = None
    try:
      wanted = self._work.send(held)
    except StopIteration:
      self._leave(0)
      return
    except (_FailedError, ValueError):
      self._leave(1)
      return
    condition, secs = wanted if isinstance(wanted, tuple) else (None, wanted)
    self._condition = condition
    if secs is not None:
      self._clock.at(secs, self._wake_after, self._turn)
    self._look()

  def _wake_after(self, turn: int) -> None:
    if self._is_over or turn != self._turn:
      return
    if self.is_stopped:
      self._late_turn = turn
    else:
      self._advance(False)

  def _look(self) -> None:
    if self._is_over or self.is_stopped:
      return
    if self._condition is not None and self._condition():
      self._advance(True)

  def _leave(self, code: int) -> None:
    self.end()
    self._exit(code)

  # What a worker does.

  def _gather(self, key: str, value: Any) -> _Steps:
    self.client.post(self.client.adopted.number, key, value)
    return (yield from self.client.collect(key))

  def _live(self) -> _Steps:
    client = self.client
    yield _INIT_SECS
    if not (yield from client.wait_facts()):
      self._steps = max(self.shared.saved, default=0)
      self._state = self.shared.saved.get(self.steps, "start")
    yield _COMPILE_SECS
    client.say(is_ready=True)
    client.adopt((yield from client.wait_first()))
    is_new = True
    while True:
      try:
        if is_new:
          is_new = False
          yield from self._regroup()
        elif self.steps >= self.shared.num_steps:
          self._save()
          yield (lambda: not self._num_saves), None
          yield from self._gather(messages.FINISHED, None)
          yield _LAST_SECS  # Until its checkpoint is closed.
          self._note_done()
          yield (lambda: not self._num_saves), None
          client.say(is_done=True)
          return
        else:
          yield from self._step()
      except (base.ViewChangedError, OSError):
        yield from self._recover()

  def _recover(self) -> _Steps:
    client = self.client
    while True:
      view = yield from client.wait_interrupt(_EXPLAIN_SECS)
      if view is None:
        raise _FailedError
      client.adopt(view)
      try:
        yield from self._regroup()
        return
      except (base.ViewChangedError, OSError):
        continue

  def _regroup(self) -> _Steps:
    yield from self.client.collect("begun")
    status = [self.epoch, self.steps, self._state]
    said = yield from self._gather("status", status)
    newest = max(said.values(), key=lambda s: tuple(s[:2]))
    epoch, steps, state = newest
    if steps < 0:  # Nobody has anything: all begin from the checkpoint.
      steps = max(self.shared.saved, default=0)
      state = self.shared.saved.get(steps, "start")
      epoch = self.client.adopted.number
    elif self.steps >= 0 and (self.steps < steps - 1 or self.epoch != epoch):
      raise _FailedError  # Impossible facts.
    elif self.steps == steps - 1 >= 0:
      self._commit()
      assert self._state == state, "states differ"
    self._steps, self._state, self._epoch = steps, state, epoch
    self.client.say(layout={"roles": [self.client.adopted.number]})

  def _step(self) -> _Steps:
    client = self.client
    for _ in range(4):
      yield STEP_SECS / 4
      if client.is_interrupted:
        raise base.ViewChangedError("a newer view")
      if any(self.shared.is_gone(m.host) for m in client.adopted.members):
        raise OSError("a transfer has failed")
      client.note_progress()
    seen = max(client.newest.number, client.adopted.number)
    self._voted_in = client.adopted.number
    votes = yield from self._gather(f"vote {self.steps}", seen)
    self._commit()
    if self.steps % _SAVE_STEPS == 0:
      self._save()
    seen = min(votes.values())
    if seen > client.adopted.number:
      yield from self._adopt((yield from client.find_view(seen)))
      yield from self._regroup()

  def _adopt(self, view: views.View) -> _Steps:
    """Adopts a view, as `ClusterCohort.adopt`."""
    client = self.client
    stopped_for = yield from client.wait_interrupt(0.0)
    client.adopt(view)
    if stopped_for is None or stopped_for.number != view.number:
      client.post(view.number, "begun", json_lib.to_plain(self._begun()))

  def _save(self, end_secs: float = math.inf) -> None:
    """Writes a checkpoint beside training, unless its life is over; see `judge.check_now`."""
    steps, state = self.steps, self._state

    def then(_: Any, error: Exception | None) -> None:
      self._num_saves -= 1
      if self._is_over:
        return
      if error is None:
        self.shared.saved.setdefault(steps, state)
        self._look()
      elif isinstance(error, OSError) and self._clock.now < end_secs:
        end = min(end_secs, self._clock.now + _PATIENCE_SECS)
        self._clock.at(_AGAIN_SECS, self._save, end)
      else:
        self._leave(1)

    self._num_saves += 1
    self.shared.judge.run(self._host, real_judge.check, (self.client.adopted,), then)

  def _note_done(self) -> None:
    """Records that the run is complete, as `judge.note_done`."""

    def then(_: Any, error: Exception | None) -> None:
      self._num_saves -= 1
      if error is not None and not self._is_over:
        self._clock.at(_AGAIN_SECS, self._note_done)

    self._num_saves += 1
    key = f"done/{self.client.adopted.run}"
    self.shared.judge.run(self._host, records_lib.Records.make, (key, True), then)

  def _commit(self) -> None:
    # Those who commit a step have voted in one view, also who commits it late.
    state = f"{self._state} {self.steps} {self._voted_in}".encode()
    self._state = hashlib.sha256(state).hexdigest()[:16]
    self._steps += 1
    self.client.say(report={"steps": self.steps})
    self.shared.on_commit(self, self.client.adopted.number, self.epoch, self.steps, self._state)
