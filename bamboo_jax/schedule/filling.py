"""Redundant forward passes in waits as they occur.

Between processes a row that waits for a value, rather than its device, decides
what to do meanwhile. It runs a redundant forward pass whose input it has, early
microbatches first, if the pass will end by the latest time at which the value
may come without a longer step:

  planned   F0 F1 F2 ............<0 B0 F3    the gradient of microbatch 0 comes,
  latest    F0 F1 F2 ...............<0 B0 F3   and may come, at <0
  row       F0 F1 F2 RF0 RF1 RF2 <0 B0 F3    RF3 would end too late

Latest times follow from the plan without redundant passes, so a row that is
behind the plan fills less. Times of the plan are stretched by how much longer
steps took than planned. The values of a step do not depend on what is filled.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
import dataclasses
import itertools
import statistics
from typing import NamedTuple

from bamboo_jax import base
from bamboo_jax.schedule import (
    costs as costs_lib,
    holdings as holdings_lib,
    instruction as instruction_lib,
    redundancy,
    timeline as timeline_lib,
)

Instruction = instruction_lib.Instruction
Op = instruction_lib.Op


NUM_STEPS = 9  # From which the stretch follows.


@dataclasses.dataclass(frozen=True)
class Filling:
  """The rules by which one node fills its waits in a step.

  Attributes:
    passes: Its redundant forward passes, those that protect most first.
    durations_ms: Planned times of all its passes, in ms.
    latest_ms: Latest planned end of each of its receives, in ms, that does not
      lengthen the step.
    span_ms: Planned time of the step.
    margin: Fraction of a pass that must be left of a wait; if negative, a pass
      may end that much too late.
    allowed_ms: Time by which any pass may end too late.
  """

  passes: Sequence[Instruction]
  durations_ms: Mapping[Instruction, float]
  latest_ms: Mapping[Instruction, float]
  span_ms: float
  margin: float = 0.0
  allowed_ms: float = 0.0

  def find_next(
      self, done: Collection[Instruction], activations: Collection[holdings_lib.Item]
  ) -> Instruction | None:
    """Returns the next pass that is not `done` and whose input is present.

    `activations` are the present inputs, by stage and microbatch. None without
    such a pass.
    """
    for i in self.passes:
      has_input = not i.stage or (i.stage - 1, i.microbatch) in activations
      if has_input and i not in done:
        return i
    return None

  def fits(self, i: Instruction, receive: Instruction | None, *, now_ms: float) -> bool:
    """Returns whether to run a pass in the wait for a receive.

    Without a receive, at the end of the row, it must end before the step.
    `now_ms` is the time since the start of the step, on the clock of the plan.
    """
    if receive is None:
      margin, latest_ms = max(0.0, self.margin), self.span_ms
    else:
      margin, latest_ms = self.margin, self.latest_ms[receive] + self.allowed_ms
    return now_ms + self.durations_ms[i] * (1.0 + margin) <= latest_ms


def plan_filling(
    lazy: timeline_lib.Timeline,
    *,
    shadows: Mapping[base.StageId, base.NodeId],
    costs: costs_lib.StageCosts,
    margin: float,
    budget: float = 0.0,
) -> dict[base.NodeId, Filling]:
  """Returns how each node fills the waits of a whole step.

  Args:
    lazy: The rows without redundant forward passes.
    shadows: Node that holds the replica, by stage.
    margin: See `Filling`.
    budget: Fraction of the step by which any pass may end too late.
  """
  latest_ms = find_latest_ms(lazy)
  microbatches = sorted({slot.instruction.microbatch for slot in lazy.slots})
  found = {}
  for node, row in lazy.rows.items():
    own = [slot.instruction for slot in row]
    passes = [
        Instruction(stage, Op.REDUNDANT_FORWARD, microbatch)
        for microbatch in microbatches
        for stage, shadow in shadows.items()
        if shadow == node
    ]
    found[node] = Filling(
        passes=passes,
        durations_ms={i: costs.pass_ms(i) for i in (*own, *passes) if not i.is_transfer},
        latest_ms={i: latest_ms[node, i] for i in own if i.is_receive},
        span_ms=lazy.span_ms,
        margin=margin,
        allowed_ms=budget * lazy.span_ms,
    )
  return found


def find_stretch(ratios: Sequence[float]) -> float:
  """Returns the factor by which rows took longer than planned.

  It is the lower quartile of the last steps, because a step that other programs
  slowed down leaves less room for passes, not more.

  Args:
    ratios: For each step, the time of its rows without redundant passes,
      relative to the plan.
  """
  return sorted(ratios)[len(ratios) // 4]


def find_latest_ms(timeline: timeline_lib.Timeline) -> dict[tuple[base.NodeId, Instruction], float]:
  """Returns when each instruction must end at the latest to keep the span."""
  slots = {(slot.node, slot.instruction): slot for slot in timeline.slots}
  latest_ms: dict[tuple[base.NodeId, Instruction], float] = {}
  # Latest start of the next instruction.
  start_ms: dict[base.NodeId, float] = {}
  for node, i in reversed(timeline_lib.linearize([timeline])):
    slot = slots[node, i]
    end_ms = start_ms.get(node, timeline.span_ms)
    if i.is_send:
      transfer = i.transfer(node)
      other = transfer.destination, transfer.receive
      transfer_ms = slots[other].end_ms - slots[other].start_ms
      end_ms = min(end_ms, latest_ms[other] - transfer_ms)
    latest_ms[node, i] = end_ms
    start_ms[node] = end_ms - (slot.end_ms - slot.start_ms)
  return latest_ms


class Filled(NamedTuple):
  """A redundant forward pass that has run.

  Attributes:
    after: Number of other passes of its node before it.
    microseconds: Its duration.
  """

  after: int
  stage: base.StageId
  microbatch: int
  microseconds: int

  @property
  def instruction(self) -> Instruction:
    """The pass as an instruction."""
    return Instruction(self.stage, Op.REDUNDANT_FORWARD, self.microbatch)


@dataclasses.dataclass(frozen=True)
class Ran:
  """Times of the passes of one node in a step, without waits.

  Attributes:
    microseconds: Duration of each pass of its row, in order.
    filled: Redundant forward passes, in order.
    span: Time until the last pass of its row ended, waits included.
  """

  microseconds: tuple[int, ...] = ()
  filled: tuple[Filled, ...] = ()
  span: int = 0

  @classmethod
  def of(cls, passes: Iterable[tuple[Instruction, float, float]], *, since_secs: float) -> "Ran":
    """Returns the record of passes, with start and end in seconds, in order."""
    own: list[int] = []
    filled, span = [], 0
    for i, start_secs, end_secs in passes:
      secs = end_secs - start_secs
      if i.op is Op.REDUNDANT_FORWARD:
        filled.append(Filled(len(own), i.stage, i.microbatch, round(1e6 * secs)))
      else:
        own.append(round(1e6 * secs))
        span = round(1e6 * (end_secs - since_secs))
    return cls(tuple(own), tuple(filled), span)


@dataclasses.dataclass(frozen=True)
class Effect:
  """Cost and protection of redundant forward passes in a step.

  Attributes:
    passes: Their number.
    overhead: Lengthening of the step by them, as a fraction.
    coverage: See `redundancy.find_coverage`.
    stretch: Time of the rows without them, relative to the plan.
  """

  passes: int
  overhead: float
  coverage: float
  stretch: float = 1.0

  @classmethod
  def of(
      cls, bare: Sequence[timeline_lib.Timeline], filled: Sequence[timeline_lib.Timeline]
  ) -> "Effect":
    """Compares timelines by pipeline without and with these passes."""
    bare_ms = max(t.span_ms for t in bare)
    filled_ms = max(t.span_ms for t in filled)
    return cls(
        passes=sum(t.num_redundant for t in filled),
        overhead=filled_ms / bare_ms - 1.0 if bare_ms else 0.0,
        coverage=statistics.fmean(map(redundancy.find_coverage, filled)),
    )


@dataclasses.dataclass(frozen=True)
class StepFilling:
  """How all nodes fill the waits of a whole step.

  Attributes:
    nodes: The rules of each node.
    lazy: Planned rows by pipeline, without redundant passes.
    placed: Predicted effect of the same passes, if they were placed ahead.
  """

  nodes: Mapping[base.NodeId, Filling]
  lazy: Sequence[timeline_lib.Timeline]
  placed: Effect

  @property
  def span_ms(self) -> float:
    """Planned time of the rows without redundant passes."""
    return max(timeline.span_ms for timeline in self.lazy)

  def find_effect(self, ran: Mapping[base.NodeId, Ran]) -> Effect | None:
    """Returns cost and protection of the redundant passes in a step that ran.

    The rows are played with the measured times of passes, with the redundant
    passes that were run and without. `ran` has the passes of all nodes. None if
    the nodes ran other rows, as after a death.
    """
    bare, filled = [], []
    for timeline in self.lazy:
      durations_ms, rows = _find_durations(timeline, ran), {}
      if durations_ms is None:
        return None
      for node, slots in timeline.rows.items():
        rows[node] = [slot.instruction for slot in slots]
      bare.append(_replay(rows, durations_ms))
      for node in rows:
        rows[node] = _insert(rows[node], ran[node].filled)
      filled.append(_replay(rows, durations_ms))
    effect = Effect.of(bare, filled)
    span_ms = max(record.span for record in ran.values()) / 1e3
    stretch = span_ms / (1.0 + effect.overhead) / self.span_ms
    return dataclasses.replace(effect, stretch=stretch)


def _find_durations(
    timeline: timeline_lib.Timeline, ran: Mapping[base.NodeId, Ran]
) -> dict[Instruction, float] | None:
  """Returns times of passes as measured and of receives as planned, in ms."""
  found = {
      slot.instruction: slot.end_ms - slot.start_ms
      for slot in timeline.slots
      if slot.instruction.is_receive
  }
  for node, slots in timeline.rows.items():
    own = [s.instruction for s in slots if not s.instruction.is_transfer]
    record = ran.get(node, Ran())
    if len(record.microseconds) != len(own):
      return None
    for i, us in zip(own, record.microseconds, strict=True):
      found[i] = us / 1e3
    for one in record.filled:
      found[one.instruction] = one.microseconds / 1e3
  return found


def _replay(
    rows: Mapping[base.NodeId, Sequence[Instruction]], durations_ms: Mapping[Instruction, float]
) -> timeline_lib.Timeline:
  """Returns the timeline of rows that have run.

  Unlike in `timeline.play`, no sender waits for its receiver, as on sockets.
  """
  left = {node: iter(row) for node, row in rows.items()}
  free_ms, slots = dict.fromkeys(rows, 0.0), []
  sent_ms: dict[instruction_lib.Transfer, float] = {}
  waiting: dict[instruction_lib.Transfer, tuple[base.NodeId, Instruction]] = {}
  moving: list[tuple[base.NodeId, Instruction | None]]
  moving = [(node, None) for node in rows]
  while moving:
    node, receive = moving.pop()
    for i in itertools.chain([receive] if receive else [], left[node]):
      start_ms = free_ms[node]
      if i.is_receive:
        transfer = i.transfer(node)
        if transfer not in sent_ms:
          waiting[transfer] = node, i
          break
        start_ms = max(start_ms - durations_ms[i], sent_ms[transfer])
      free_ms[node] = start_ms + durations_ms.get(i, 0.0)
      slots.append(timeline_lib.Slot(node, i, start_ms, free_ms[node]))
      if i.is_send:
        sent_ms[i.transfer(node)] = start_ms
        if i.transfer(node) in waiting:
          moving.append(waiting.pop(i.transfer(node)))
  return timeline_lib.Timeline(
      slots=tuple(slots),
      span_ms=max(free_ms.values(), default=0.0),
      peak_bytes=dict.fromkeys(rows, 0),
  )


def _insert(row: Sequence[Instruction], filled: Sequence[Filled]) -> list[Instruction]:
  """Returns a row with passes before the receive in whose wait they ran."""
  found, num_passes, left = [], 0, [*filled]
  for i in row:
    # Sends before a wait have been made; a pass shows that the wait is over.
    while left and left[0].after == num_passes and not i.is_send:
      found.append(left.pop(0).instruction)
    found.append(i)
    num_passes += not i.is_transfer
  return [*found, *(f.instruction for f in left)]
