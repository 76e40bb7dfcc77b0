"""Counts steps, saves and pauses between two events.

All steps between two events are equal, so they are counted and not played: the
computation is constant in their number. Saves are asynchronous: the state is
copied between two steps, which may stall training, and is safe only some time
later. A rollback returns to the last safe state.
"""

import dataclasses
import functools
import math

from bamboo_jax import config as config_lib
from bamboo_jax.accounting import account as account_lib
from bamboo_jax.sim import times as times_lib

# Tolerances: part of a step that may be missing for it to count as done, and
# seconds of a save.
_NEARLY = 1e-6


_Mark = tuple[account_lib.Account, int, float]  # Totals, steps and dropped samples.


class Books:
  """Accounts for a run from event to event.

  A state is copied at the end of the first step that is `save_every_secs` after
  the last copy, or later if the last save still runs. There are no copies if
  `save_every_secs` is 0.

  Attributes:
    totals: Of the run so far.
    num_steps: Steps trained and not rolled back.
    num_dropped: Samples that were dropped from those steps.
    elapsed_secs: Finished part of the step in flight.
  """

  def __init__(self, saves: config_lib.DurationsSection) -> None:
    self.totals = account_lib.Account()
    self.num_steps = 0
    self.num_dropped = 0.0
    self.elapsed_secs = 0.0
    self._saves = saves
    self._save_every_secs = max(saves.save_every_secs or math.inf, saves.save_secs)
    self._now_secs = 0.0
    self._cost = times_lib.StepCost(secs=1.0, num_samples=0.0)
    self._num_nodes = (0, 0)
    self._kind: str | None = "idle"
    self._rate = _make_rate("idle", 0, 0)
    self._stall_until_secs = 0.0
    self._next_save_secs = self._save_every_secs
    self._step_start = self.totals
    self._safe = self._mark()
    self._pending: tuple[float, _Mark] | None = None  # When it is safe, and that.

  @property
  def step_end_secs(self) -> float:
    """When the step in flight ends if no event happens."""
    start = max(self._now_secs, self._stall_until_secs)
    return start - self.elapsed_secs + self._cost.secs

  def set_nodes(self, *, live: int, training: int) -> None:
    if (live, training) != self._num_nodes:
      self._num_nodes = live, training
      self.pause(self._kind)

  def train(self, cost: times_lib.StepCost | None = None) -> None:
    """Starts steps of a cost; None continues the step in flight."""
    self._cost = cost or self._cost
    self.pause(None)

  def change_samples(self, cost: times_lib.StepCost) -> None:
    """Sets the samples of the step in flight to those of `cost`."""
    self._cost = dataclasses.replace(
        self._cost, num_samples=cost.num_samples, num_dropped=cost.num_dropped
    )

  def pause(self, kind: str | None) -> None:
    """Stops training, with time accounted as `kind`; None does not stop it."""
    self._kind = kind
    self._rate = _make_rate(kind or self._cost, *self._num_nodes)

  def lose_step(self) -> None:
    if self.elapsed_secs:
      self.totals = self.totals.roll_back(self._step_start)
      self.elapsed_secs = 0.0

  def save(self) -> None:
    """Saves the state, between two steps; the caller adds the pause."""
    self._safe, self._pending = self._mark(), None
    self._next_save_secs = self._now_secs + self._save_every_secs

  def roll_back(self) -> None:
    self._settle()
    totals, self.num_steps, self.num_dropped = self._safe
    self.totals = self.totals.roll_back(totals)
    self.elapsed_secs = 0.0
    self._pending = None

  def advance(self, now_secs: float) -> None:
    """Accounts for the time until `now_secs`."""
    if self._kind is None:
      self._train_until(now_secs)
    elif now_secs > self._now_secs:
      self._add(now_secs - self._now_secs)
    self._now_secs = max(self._now_secs, now_secs)

  def _train_until(self, now_secs: float) -> None:
    saves, step_secs = self._saves, self._cost.secs
    base_secs = self._leave_stall(now_secs) - self.elapsed_secs
    if self._save_every_secs < math.inf:
      first = max(1, _ceil((self._next_save_secs - base_secs) / step_secs))
      every_secs = self._save_every_secs - saves.stall_secs
      every = max(1, _ceil(every_secs / step_secs))
      # Number of further states copied in this span.
      last = (now_secs - base_secs) / step_secs + _NEARLY - first
      last = math.floor(last / (every + saves.stall_secs / step_secs))
      if last >= 0:
        # Of the copies only the last two can matter: at most one is not safe yet.
        if last:
          self._steps(first + (last - 1) * every, num_stalls=last - 1)
          self._take_state()
          self._steps(every, num_stalls=1)
        else:
          self._steps(first)
        self._take_state()
        self._stall_until_secs = self._now_secs + saves.stall_secs
        base_secs = self._leave_stall(now_secs)
    self._steps(int((now_secs - base_secs) / step_secs + _NEARLY))
    if now_secs > max(self._now_secs, self._stall_until_secs):
      part_secs = now_secs - self._now_secs
      if not self.elapsed_secs:
        self._step_start = self.totals
      self._add(part_secs)
      if self.elapsed_secs + part_secs > _NEARLY * step_secs:
        self.elapsed_secs += part_secs

  def _leave_stall(self, now_secs: float) -> float:
    """Accounts for the rest of a stall; returns when training resumes."""
    if self._stall_until_secs <= self._now_secs:
      return self._now_secs
    until_secs = max(self._now_secs, min(now_secs, self._stall_until_secs))
    self._add(until_secs - self._now_secs, stalls=True)
    self._now_secs = until_secs
    return self._stall_until_secs

  def _steps(self, count: int, *, num_stalls: int = 0) -> None:
    if count <= 0:
      return
    cost = self._cost
    train_secs = max(0.0, count * cost.secs - self.elapsed_secs)
    self._add(train_secs, num_samples=count * cost.num_samples)
    self.elapsed_secs = 0.0
    self._now_secs += train_secs
    self.num_steps += count
    self.num_dropped += count * cost.num_dropped
    if num_stalls:
      stall_secs = num_stalls * self._saves.stall_secs
      self._add(stall_secs, stalls=True)
      self._now_secs += stall_secs

  def _take_state(self) -> None:
    self._settle()
    self._pending = self._now_secs + self._saves.save_secs, self._mark()
    self._next_save_secs = self._now_secs + self._save_every_secs

  def _settle(self) -> None:
    if self._pending and self._pending[0] <= self._now_secs + _NEARLY:
      self._safe, self._pending = self._pending[1], None

  def _mark(self) -> _Mark:
    return self.totals, self.num_steps, self.num_dropped

  def _add(self, secs: float, *, num_samples: float = 0.0, stalls: bool = False) -> None:
    rate = self._rate
    if stalls:
      rate = _make_rate("checkpoint", *self._num_nodes)
    node_secs = secs * self._num_nodes[0]
    self.totals += account_lib.Account(secs, node_secs, rate * secs, num_samples)


@functools.lru_cache(maxsize=100_000)
def _make_rate(doing: str | times_lib.StepCost, live: int, training: int) -> account_lib.NodeTime:
  shares = account_lib.NodeTime(**{doing: 1.0}) if isinstance(doing, str) else doing.shares
  return shares * training + account_lib.NodeTime(idle=live - training)


def _ceil(count: float) -> int:
  """Rounds up, with a tolerance for nearly whole numbers."""
  return math.ceil(count - _NEARLY)
