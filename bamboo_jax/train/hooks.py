"""Hooks of the training loop: metrics, traces, evaluation, checkpoints."""

from collections.abc import Callable, Sequence
import statistics
from typing import Any

from bamboo_jax.metrics import chrome_trace
from bamboo_jax.metrics import jsonl
from bamboo_jax.metrics import progress as progress_lib
from bamboo_jax.metrics import slot as slot_lib
from bamboo_jax.metrics import tensorboard
from bamboo_jax.runtime.profile import recorder as recorder_lib
from bamboo_jax.schedule import instruction as instruction_lib
from bamboo_jax.schedule import timeline as timeline_lib
from bamboo_jax.train import cost
from bamboo_jax.train import step as step_lib

Op = instruction_lib.Op

_CATEGORIES = {
    Op.FORWARD: "forward",
    Op.REDUNDANT_FORWARD: "redundant",
    Op.BACKWARD: "backward",
    Op.SEND_ACTIVATION: "transfer",
    Op.SEND_GRAD: "transfer",
    Op.RECV_ACTIVATION: "transfer",
    Op.RECV_GRAD: "transfer",
}


def bubble_fraction(
    measured: Sequence[recorder_lib.Measured],
) -> float | None:
  """Returns the share of the nodes' time in which no program of a row ran.

  None if nothing was measured, since the step was one program.
  """
  if not measured:
    return None
  computes = [m for m in measured if m.instruction.op in _COMPUTE]
  start = min(m.start_secs for m in measured)
  span = max(m.end_secs for m in computes) - start
  busy = sum(m.end_secs - m.start_secs for m in computes)
  return 1.0 - busy / (span * len({m.node for m in measured}))


_COMPUTE = (Op.FORWARD, Op.BACKWARD, Op.REDUNDANT_FORWARD)


class StepMetrics:
  """Writes the metrics of each step, and keeps what the summary needs.

  Attributes:
    step_secs: Time of each step so far.
    bubbles: Bubble fraction of each step so far that was run by rows.
    loss: Loss of the last step; None before the first.
  """

  def __init__(
      self,
      *,
      writer: jsonl.MetricsWriter,
      progress: progress_lib.Progress,
      events: tensorboard.TensorBoardWriter | None,
      batch_size: int,
      meter: cost.Meter,
  ) -> None:
    self.step_secs: list[float] = []
    self.bubbles: list[float] = []
    self.loss: float | None = None
    self._writer = writer
    self._progress = progress
    self._events = events
    self._batch_size = batch_size
    self._meter = meter

  def __call__(self, step: int, result: step_lib.StepResult) -> None:
    """See `loop.Hook`."""
    bubble = bubble_fraction(result.measured)
    self._meter.add_step(result)
    self.step_secs.append(result.secs)
    self.loss = result.loss
    if bubble is not None:
      self.bubbles.append(bubble)
    shown = shown_values(result, bubble=bubble, meter=self._meter)
    more = more_values(
        step, result, batch_size=self._batch_size, meter=self._meter
    )
    self._writer.write_step(step, shown | more)
    self._progress.show_step(step, shown)
    if self._events is not None:
      self._events.write_step(step, shown)


def shown_values(
    result: step_lib.StepResult, *, bubble: float | None, meter: cost.Meter
) -> dict[str, float]:
  """Returns what whoever watches sees of a step.

  Args:
    result: The step.
    bubble: Its bubble fraction; None if not measured.
    meter: Has been told of the step.
  """
  shown = {"loss": result.loss, "tokens_per_sec": result.weight / result.secs}
  if bubble is not None:
    shown["bubble_pct"] = 100 * bubble
  shown["step_ms"] = 1e3 * result.secs
  shown["usd"] = meter.account.usd
  return shown


def more_values(
    step: int,
    result: step_lib.StepResult,
    *,
    batch_size: int,
    meter: cost.Meter,
) -> dict[str, Any]:
  """Returns what only the log tells of a step.

  Args:
    step: Number of steps done.
    result: The step.
    batch_size: Samples of a step.
    meter: Has been told of the step.
  """
  return meter.totals | {
      "grad_norm": result.grad_norm,
      "samples_seen": step * batch_size,
      "phase_ms": {k: 1e3 * v for k, v in result.phase_secs.items()},
  }


class Trace:
  """Keeps planned and measured slots of the last steps."""

  def __init__(
      self,
      writer: chrome_trace.TraceWriter,
      timelines: Sequence[timeline_lib.Timeline],
  ) -> None:
    self.planned = planned_slots(timelines)
    self.measured: tuple[slot_lib.Slot, ...] = ()
    self._writer = writer
    self._start_secs: float | None = None

  def __call__(self, step: int, result: step_lib.StepResult) -> None:
    """See `loop.Hook`."""
    if self._start_secs is None:
      self._start_secs = result.start_secs
    self.measured = measured_slots(result)
    self._writer.add_step(
        step,
        start_ms=1e3 * (result.start_secs - self._start_secs),
        planned=self.planned,
        measured=self.measured,
    )

  def write(self) -> None:
    """Writes the trace file."""
    self._writer.write()


class Every:
  """Calls `action(step)` every `every_steps` steps; never if that is 0.

  Args:
    every_steps: Number of steps.
    action: Called with the number of steps done.
    but_not_at: A step at which there is no time for it.
  """

  def __init__(
      self,
      every_steps: int,
      action: Callable[[int], Any],
      *,
      but_not_at: int | None = None,
  ) -> None:
    self._every_steps = every_steps
    self._action = action
    self._but_not_at = but_not_at

  def __call__(self, step: int, result: step_lib.StepResult) -> None:
    """See `loop.Hook`."""
    is_due = self._every_steps and step % self._every_steps == 0
    if is_due and step != self._but_not_at:
      self._action(step)


def planned_slots(
    timelines: Sequence[timeline_lib.Timeline],
) -> tuple[slot_lib.Slot, ...]:
  """Returns what the plan expects each node to do in a step."""
  return tuple(
      slot_lib.Slot(
          track=f"node {slot.node}",
          name=str(slot.instruction),
          start_ms=slot.start_ms,
          end_ms=slot.end_ms,
          category=_CATEGORIES[slot.instruction.op],
      )
      for timeline in timelines
      for slot in timeline.slots
  )


def measured_slots(result: step_lib.StepResult) -> tuple[slot_lib.Slot, ...]:
  """Returns what each node did in a step."""
  return tuple(
      slot_lib.Slot(
          track=f"node {m.node}",
          name=str(m.instruction),
          start_ms=1e3 * (m.start_secs - result.start_secs),
          end_ms=1e3 * (m.end_secs - result.start_secs),
          category=_CATEGORIES[m.instruction.op],
      )
      for m in result.measured
  )


def median_bubble(bubbles: Sequence[float]) -> float | None:
  """Returns the median over steps, leaving out the first if there are more."""
  if not bubbles:
    return None
  return statistics.median(bubbles[1:] or bubbles)
