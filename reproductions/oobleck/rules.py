"""The rules of Oobleck and Varuna in the simulator of Oobleck's evaluation.

In both, every loss makes all nodes gather, even the loss of a waiting node;
added nodes are unused until then.
"""

import bisect
from collections.abc import Mapping, Sequence

from bamboo_jax.reproductions.bamboo import loop as artifact_loop
from bamboo_jax.reproductions.oobleck import inputs

_CHECKPOINT_EVERY = 10  # Steps.


class OobleckRules:
  """Oobleck: nodes gather for a short time, and a step is lost."""

  num_stages = inputs.NUM_STAGES

  def __init__(self, model: inputs.Model) -> None:
    self.lost_ms = 0
    self.timers_ms = {True: model.reconfigure_ms}  # There is only one kind.
    self._model = model

  def step_ms(self, num_pipelines: int, num_ready: int) -> int:
    """Returns the time of a step."""
    del num_pipelines  # Their sizes differ.
    return self._model.step_ms("oobleck", num_ready)

  def assign(self, nodes: Sequence[artifact_loop.Node]) -> None:
    """Does nothing: the assignment of nodes does not matter."""

  def lose(self, loop: artifact_loop.Loop, node: artifact_loop.Node) -> None:
    """Makes all nodes gather."""
    del node
    self.lost_ms += loop.step_ms
    loop.gather(is_global=True)

  def end_step(self, loop: artifact_loop.Loop) -> bool:
    """Counts the step and starts the next one."""
    loop.complete_step()
    loop.start_step(loop.now_ms)
    return True


class VarunaRules:
  """Varuna: restarts from the last checkpoint, one every 10 steps.

  Each step is worth its rate times its interval; a lost step's rate becomes 0.

  A checkpoint that is unfinished when a node is removed fails. Without
  `has_rollback` none fails, and no step is lost.

  Attributes:
    lost_ms: The lost time by the artifact's account.
    idle_ms: Time of idle GPUs, as a fraction of all of them.
  """

  num_stages = inputs.NUM_STAGES

  def __init__(
      self, model: inputs.Model, removals_ms: Sequence[int], *, has_rollback: bool
  ) -> None:
    self.lost_ms = self.checkpoint_sum_ms = 0
    self.idle_ms = 0.0
    self._model = model
    self._removals_ms = removals_ms
    self._has_rollback = has_rollback
    self._restart_ms = model.restart_ms
    self._idle_gpus = 0
    self._starts_ms: list[int] = []
    self._intervals_ms: list[int] = []
    self._rates: list[float] = []  # Samples per ms.
    self._checkpoint_ms: int | None = None  # Start of the first step after it.
    self._checkpoint_ends_ms: list[int] = []
    self._is_after_loss = False

  def kept_samples(self) -> float:
    """Returns the samples that were not lost."""
    steps = zip(self._rates, self._intervals_ms, strict=False)
    return sum(rate * interval_ms for rate, interval_ms in steps)

  @property
  def timers_ms(self) -> Mapping[bool, int]:
    """How long nodes gather; the checkpoint is paid afterwards."""
    return {True: self._restart_ms - self._model.checkpoint_ms}

  def step_ms(self, num_pipelines: int, num_ready: int) -> int:
    """Returns the time of a step."""
    del num_pipelines  # Their sizes differ.
    if self._model.restart_ms_by_nodes:
      num_nodes = inputs.clip(num_ready)
      self._restart_ms = self._model.restart_ms_by_nodes[num_nodes]
    self._idle_gpus = self._model.idle_gpus.get(num_ready, 0)
    return self._model.step_ms("varuna", num_ready)

  def assign(self, nodes: Sequence[artifact_loop.Node]) -> None:
    """Does nothing: the assignment of nodes does not matter."""

  def lose(self, loop: artifact_loop.Loop, node: artifact_loop.Node) -> None:
    """Loses the steps after the last checkpoint, and makes all nodes gather."""
    del node
    self._is_after_loss = True
    if self._has_rollback and self._checkpoint_ms is None:
      self._rates = [0.0] * len(self._rates)
      self.lost_ms += loop.now_ms
    elif self._has_rollback:
      kept = bisect.bisect_left(self._starts_ms, self._checkpoint_ms)
      if kept < len(self._starts_ms):
        num_lost = len(self._rates) - kept
        self._rates[kept:] = [0.0] * num_lost
        self.lost_ms += loop.step_ms * (2 * num_lost - 1)
    loop.gather(is_global=True)

  def end_step(self, loop: artifact_loop.Loop) -> bool:
    """Counts the step, makes a checkpoint if due, and starts the next one."""
    interval_ms = loop.now_ms - loop.interval_start_ms
    self._starts_ms.append(loop.interval_start_ms)
    self._intervals_ms.append(interval_ms)
    self._rates.append(self._model.samples_per_step / interval_ms)
    self.idle_ms += interval_ms * self._idle_gpus / max(1, loop.num_ready)
    loop.complete_step()
    if loop.num_steps % _CHECKPOINT_EVERY == 0 or self._is_after_loss:
      self._save(loop)
    loop.start_step(loop.interval_start_ms)
    return False

  def _save(self, loop: artifact_loop.Loop) -> None:
    """Makes a checkpoint, which pauses training, or loses the last 10 steps."""
    self._is_after_loss = False
    self.checkpoint_sum_ms += self._model.checkpoint_ms
    loop.interval_start_ms += self._model.checkpoint_ms
    if self._has_rollback and self._will_fail(loop):
      loop.num_steps = max(0, loop.num_steps - _CHECKPOINT_EVERY)
      # With fewer steps on record there are more rates than intervals from now
      # on, so that each later rate is paired with a later interval.
      self._rates[-_CHECKPOINT_EVERY:] = [0.0] * _CHECKPOINT_EVERY
      self.lost_ms += _CHECKPOINT_EVERY * loop.step_ms
    else:
      self._checkpoint_ms = loop.interval_start_ms

  def _will_fail(self, loop: artifact_loop.Loop) -> bool:
    """Returns whether a loss precedes the end of an open checkpoint.

    The end is late by the time of a checkpoint, as in the artifact.
    """
    end_ms = loop.interval_start_ms + self._model.checkpoint_ms
    if loop.queues_steps:
      return loop.scan(end_ms)
    open_ms = [t for t in self._checkpoint_ends_ms if t >= loop.now_ms]
    self._checkpoint_ends_ms = [*open_ms, end_ms]
    following = bisect.bisect_right(self._removals_ms, loop.now_ms)
    if following == len(self._removals_ms):
      return False
    return self._removals_ms[following] <= self._checkpoint_ends_ms[0]
