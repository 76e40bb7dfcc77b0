"""Redundant forward passes: what they cost and protect, as planned and as run.

A redundant forward pass leaves residuals on the shadow of a stage, which need
not run it again after a death. It costs time unless it fits into a wait:

  none     no replicas, so a death ends the step of the pipeline
  lazy     replicas, but no redundant forward pass
  bubble   only in waits that are predicted to be long enough, with a margin
  budget   the step may lengthen by at most a budget
  eager    a pass may end too late by a multiple of its time

A pass goes where the `rule` lets it.
"""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import functools
import statistics
from typing import NamedTuple

from bamboo_jax import base
from bamboo_jax.schedule import (
    costs as costs_lib,
    instruction as instruction_lib,
    rule as rule_lib,
    timeline as timeline_lib,
)

Instruction = instruction_lib.Instruction
Op = instruction_lib.Op
Rules = Mapping[base.NodeId, rule_lib.WaitRule]

NUM_STEPS = 9  # From which the stretch follows.


@dataclasses.dataclass(frozen=True)
class PlannedRows:
  """The rows of a whole step of a pipeline.

  Attributes:
    bare: Without redundant forward passes.
    rules: By node; empty without redundant forward passes.
  """

  bare: timeline_lib.Timeline
  rules: Rules
  costs: costs_lib.StageCosts

  @functools.cached_property
  def timeline(self) -> timeline_lib.Timeline:
    """The rows whose waits are filled by the rules, played ahead."""
    if not self.rules:
      return self.bare
    return rule_lib.replay(self.bare.instructions, self.costs.time_ms, self.rules)


def find_coverage(timeline: timeline_lib.Timeline) -> float:
  """Returns the fraction of lost forward passes that need not be repeated.

  A death is equally likely at all times of `timeline` and on all nodes. The
  forward passes of the victim's stages are lost, since its shadow owes all
  backward passes; those that the shadow has run redundantly are covered. The
  result is the quotient of expected numbers: 0 without redundant forward
  passes, 1 if each were done as early as the original.
  """
  done_ms: dict[Op, dict[tuple[base.StageId, int], float]] = {
      Op.FORWARD: {},
      Op.REDUNDANT_FORWARD: {},
  }
  for slot in timeline.slots:
    i = slot.instruction
    if i.op in done_ms:
      done_ms[i.op].setdefault(i.item, slot.end_ms)
  redundant_ms = done_ms[Op.REDUNDANT_FORWARD]
  lost_ms = kept_ms = 0.0
  for key, at_ms in done_ms[Op.FORWARD].items():
    lost_ms += timeline.span_ms - at_ms
    if key in redundant_ms:
      kept_ms += timeline.span_ms - max(at_ms, redundant_ms[key])
  return kept_ms / lost_ms if lost_ms else 0.0


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
    own, filled, span = list[int](), list[Filled](), 0
    for i, start_secs, end_secs in passes:
      microseconds = round(1e6 * (end_secs - start_secs))
      if i.op is Op.REDUNDANT_FORWARD:
        filled.append(Filled(len(own), *i.item, microseconds))
      else:
        own.append(microseconds)
        span = round(1e6 * (end_secs - since_secs))
    return cls(tuple(own), tuple(filled), span)


@dataclasses.dataclass(frozen=True)
class Effect:
  """Cost and protection of redundant forward passes in a step.

  Attributes:
    passes: Their number.
    overhead: Lengthening of the step by them, as a fraction.
    coverage: See `find_coverage`.
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
        coverage=statistics.fmean(map(find_coverage, filled)),
    )


@dataclasses.dataclass(frozen=True)
class StepFilling:
  """How all nodes fill the waits of a whole step, as these occur."""

  plans: Sequence[PlannedRows]

  @functools.cached_property
  def rules(self) -> Rules:
    """The rule of each node."""
    return {node: rule for plan in self.plans for node, rule in plan.rules.items()}

  @functools.cached_property
  def predicted(self) -> Effect:
    """The predicted effect."""
    return Effect.of([p.bare for p in self.plans], [p.timeline for p in self.plans])

  def find_effect(self, ran: Mapping[base.NodeId, Ran]) -> Effect | None:
    """Returns cost and protection of the redundant passes in a step that ran.

    The rows are played with the measured times of passes, with the redundant
    passes that were run and without. `ran` has the passes of all nodes. None if
    the nodes ran other rows, as after a death.
    """
    bare, filled = [], []
    for plan in self.plans:
      rows, ms = plan.bare.instructions, dict[Instruction, float]()
      for node, row in rows.items():
        own, record = [i for i in row if not i.is_transfer], ran.get(node, Ran())
        if len(record.microseconds) != len(own):
          return None
        ms |= {i: us / 1e3 for i, us in zip(own, record.microseconds, strict=True)}
        ms |= {one.instruction: one.microseconds / 1e3 for one in record.filled}
      time_ms = lambda i, ms=ms, costs=plan.costs: ms[i] if i in ms else costs.time_ms(i)
      bare.append(rule_lib.replay(rows, time_ms))
      rows = {node: _insert(row, ran[node].filled) for node, row in rows.items()}
      filled.append(rule_lib.replay(rows, time_ms))
    effect = Effect.of(bare, filled)
    span_ms = max(record.span for record in ran.values()) / 1e3 / (1.0 + effect.overhead)
    planned_ms = max(plan.bare.span_ms for plan in self.plans)
    return dataclasses.replace(effect, stretch=span_ms / planned_ms)


def find_stretch(ratios: Sequence[float]) -> float:
  """Returns the factor by which rows took longer than planned.

  It is the lower quartile of the last steps, because a step that other programs
  slowed down leaves less room for passes, not more.

  Args:
    ratios: For each step, the time of its rows without redundant passes,
      relative to the plan.
  """
  return sorted(ratios)[len(ratios) // 4]


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
