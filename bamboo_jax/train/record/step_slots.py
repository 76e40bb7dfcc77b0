"""Planned and measured steps as intervals, for traces and pictures."""

from collections.abc import Sequence
import os

from bamboo_jax.metrics import chrome_trace
from bamboo_jax.metrics import schedule_plot
from bamboo_jax.metrics import slot as slot_lib
from bamboo_jax.runtime.profile import recorder as recorder_lib
from bamboo_jax.schedule import instruction as instruction_lib
from bamboo_jax.schedule import timeline as timeline_lib
from bamboo_jax.train import step as step_lib

Op = instruction_lib.Op

_CATEGORIES = {
    Op.FORWARD: "forward",
    Op.REDUNDANT_FORWARD: "redundant",
    Op.BACKWARD: "backward",
}
_OUTPUT = "output of stage {i.stage} for microbatch {i.microbatch}"
_MEANINGS = {
    Op.FORWARD: "forward pass of stage {i.stage}, microbatch {i.microbatch}",
    Op.BACKWARD: "backward pass of stage {i.stage}, microbatch {i.microbatch}",
    Op.REDUNDANT_FORWARD: (
        "redundant forward pass, stage {i.stage}, microbatch {i.microbatch}"
    ),
    Op.SEND_ACTIVATION: _OUTPUT + ", to node {i.peer}",
    Op.RECV_ACTIVATION: _OUTPUT + ", from node {i.peer}",
    Op.SEND_GRAD: "gradient of the " + _OUTPUT + ", to node {i.peer}",
    Op.RECV_GRAD: "gradient of the " + _OUTPUT + ", from node {i.peer}",
}


def traced_step(
    done: step_lib.Committed, *, since_secs: float
) -> chrome_trace.TracedStep:
  """Returns a committed step as planned at its start, and as measured.

  A lost node is marked as dead when its loss became known.

  `since_secs` is the time 0 of the trace, on the clock of `done`.
  """
  deaths = [
      slot_lib.TrackSlot(f"node {node}", f"{name} dies", ms, ms, slot_lib.DEATH)
      for r in done.recoveries
      for ms in [max(0.0, 1e3 * (r.view_at_secs - done.start_secs))]
      for node, name in zip(r.nodes, r.names, strict=True)
  ]
  return chrome_trace.TracedStep(
      done.steps,
      1e3 * (done.start_secs - since_secs),
      planned_slots(done.planned),
      (*measured_slots(done.measured, start_secs=done.start_secs), *deaths),
  )


def plot_step(
    path: str | os.PathLike[str],
    steps: Sequence[step_lib.Committed],
    *,
    formats: Sequence[str],
) -> None:
  """Draws the last measured step without a death, or else the last one.

  A step with a death has several plans and is not comparable to its first.
  Draws nothing if no step was measured.
  """
  steps = [step for step in steps if step.measured]
  if not steps:
    return
  done = next((s for s in reversed(steps) if not s.recoveries), steps[-1])
  traced = traced_step(done, since_secs=done.start_secs)
  victims = [victim for r in done.recoveries for victim in r.victims]
  title = f"Step {done.steps}"
  if victims:
    title += f", in which {', '.join(victims)} died: planned before that"
  schedule_plot.plot_schedule(
      path,
      planned=traced.planned,
      measured=[s for s in traced.measured if s.category != slot_lib.DEATH],
      title=title,
      formats=formats,
  )


def planned_slots(
    timelines: Sequence[timeline_lib.Timeline],
) -> tuple[slot_lib.TrackSlot, ...]:
  """Returns the slots of planned timelines, in milliseconds."""
  return tuple(
      _slot(s.node, s.instruction, s.start_ms, s.end_ms)
      for timeline in timelines
      for s in timeline.slots
  )


def measured_slots(
    measured: Sequence[recorder_lib.MeasuredInstruction], *, start_secs: float
) -> tuple[slot_lib.TrackSlot, ...]:
  """Returns measured slots, in milliseconds since `start_secs`."""
  ms = lambda secs: 1e3 * (secs - start_secs)
  return tuple(
      _slot(m.node, m.instruction, ms(m.start_secs), ms(m.end_secs))
      for m in measured
  )


def _slot(
    node: int,
    instruction: instruction_lib.Instruction,
    start_ms: float,
    end_ms: float,
) -> slot_lib.TrackSlot:
  return slot_lib.TrackSlot(
      track=f"node {node}",
      name=str(instruction),
      start_ms=start_ms,
      end_ms=end_ms,
      category=_CATEGORIES.get(instruction.op, "transfer"),
      meaning=_MEANINGS[instruction.op].format(i=instruction),
  )
