"""Finds the node that is slow and makes the others wait.

The time that a node is busy in a step is compared with its own past and with
nodes that ran the same passes in the same step. A node is named if it was
clearly slower in three successive steps, and waited less than most others: in
a pipeline all wait for the slowest, which waits for nobody.

  busy in ms      step 7     8     9    10       past    ratio in 8, 9, 10
  n0 (stage 0)        20    21    20    20         20    1.0
  n1 (stage 1)        30   148   151   149         30    4.9          named
  n2 (stage 0)        20    20    22    20         20    1.0

A machine that becomes slow as a whole names no node, since ratios to the past
are divided by that of the median node. Noise names none either: in each of the
three steps the ratio must exceed the spread of the node's own past, and its
longer steps.
"""

import collections
from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import math
import statistics
from typing import Protocol

from bamboo_jax.schedule import instruction as instruction_lib

Op = instruction_lib.Op

RESPONSES = ("report", "remove")  # Values of `config.recovery.slow`.
NUM_CONFIRMED = 3  # Steps in which a node must have been slow.
NUM_SKIPPED = 3  # The first steps in a view, which load programs and data.
NUM_KEPT = 24  # Steps that a judgement takes into account.
_LEAST_PAST = 5  # Steps before these, for a comparison with the past; without
# it, a node must have been slower than others in as many steps, and in all.
_LEAST_RATIO = 1.2
_WITHOUT_PAST = 1.5  # The least ratio of a node with a shorter past than this:
_LONG_PAST = 8
_ABOVE_LONG = 1.2  # As a factor of this quantile of the past:
_QUANTILE = 0.85
_CLEAR = 2.0  # A ratio that is not noise, whatever the past.
_SPREADS = 6.0  # Median deviations from the past that count as noise.


@dataclasses.dataclass(frozen=True)
class NodeStep:
  """A node in a step.

  Attributes:
    work: The number of its forward and backward passes, `1B*4 1F*4`; only equal
      work is compared.
    busy_secs: The time that these took.
    waited_secs: The time that it waited for values of other nodes; None if not
      known.
  """

  work: str
  busy_secs: float
  waited_secs: float | None = None


Step = Mapping[int, NodeStep]


class Measured(Protocol):
  """An instruction that has run; see `profile.recorder.Measured`."""

  node: int
  instruction: instruction_lib.Instruction
  start_secs: float
  end_secs: float


def measure(
    measured: Iterable[Measured],
    *,
    secs: float,
    waited_secs: float,
    is_alone: bool,
) -> Step:
  """Returns the times of local nodes in a step.

  Args:
    secs: The duration of the step, waiting included.
    waited_secs: The time that the process waited for others.
    is_alone: Whether the process hosts one node. Then its time outside of
      receives counts as busy, as when the process is suspended.
  """
  work: dict[int, collections.Counter[str]] = {}
  busy: dict[int, float] = {}
  spare: dict[int, float] = {}  # Redundant passes fill waits, or do not run.
  for one in measured:
    node, instruction = one.node, one.instruction
    took_secs = one.end_secs - one.start_secs
    if instruction.op is Op.REDUNDANT_FORWARD:
      spare[node] = spare.get(node, 0.0) + took_secs
    elif instruction.op not in instruction_lib.TRANSFERS:
      kind = f"{instruction.stage}{instruction.op.value}"
      work.setdefault(node, collections.Counter())[kind] += 1
      busy[node] = busy.get(node, 0.0) + took_secs
  found = {}
  for node in work:
    if is_alone:
      free_secs = waited_secs + spare.get(node, 0.0)
      busy[node] = max(busy[node], secs - free_secs)
    found[node] = NodeStep(
        " ".join(f"{k}*{num}" for k, num in sorted(work[node].items())),
        busy[node],
        max(0.0, secs - busy[node]) if is_alone else None,
    )
  return found


def find_slow(history: Sequence[Step]) -> dict[int, float]:
  """Returns how many times slower each slow node is than it should be.

  Args:
    history: Each node in the last steps, oldest first; at most `NUM_KEPT`
      count.
  """
  history = history[-NUM_KEPT:]
  past, recent = history[:-NUM_CONFIRMED], history[-NUM_CONFIRMED:]
  if len(recent) < NUM_CONFIRMED:
    return {}
  total = _add_up(recent)
  slow = {}
  for node in total:
    if _is_waited_for(node, total):
      ratio = _ratio(node, past, recent, total)
      if ratio is not None:
        slow[node] = ratio
  return slow


def _add_up(steps: Sequence[Step]) -> Step:
  """Returns the sums over steps, of nodes with the same work in all."""
  total = {}
  for node, last in steps[-1].items():
    found = [step[node] for step in steps if node in step]
    if [one.work for one in found] == [last.work] * len(steps):
      waits = [w for one in found if (w := one.waited_secs) is not None]
      total[node] = NodeStep(
          last.work,
          sum(one.busy_secs for one in found),
          sum(waits) if len(waits) == len(found) else None,
      )
  return total


def _is_waited_for(node: int, step: Step) -> bool:
  """Whether a node waited less than most others, as far as is known."""
  waits = [
      other.waited_secs
      for number, other in step.items()
      if number != node and other.waited_secs is not None
  ]
  mine = step[node].waited_secs
  return not waits or mine is None or mine < statistics.median(waits)


def _ratio(
    node: int, past: Sequence[Step], recent: Sequence[Step], total: Step
) -> float | None:
  """Returns the least ratio in `recent`; None if it may be noise."""
  usual = _usual(node, past, work=total[node].work)
  if usual:
    limit = _noise_limit(usual)
    ratios = [_to_past(node, past, step) for step in recent]
    ratios.append(_to_peers(node, total) or math.inf)
  else:
    limit = _WITHOUT_PAST
    steps = [step for step in (*past, *recent) if node in step]
    if len(steps) < _LEAST_PAST:
      return None
    ratios = [_to_peers(node, step) or 0.0 for step in steps]
  least = min(ratios)
  return least if least > limit else None


def _noise_limit(usual: Sequence[float]) -> float:
  """Returns the least ratio that is not noise, from times in the past."""
  middle = statistics.median(usual)
  spread = statistics.median(abs(secs / middle - 1.0) for secs in usual)
  index = min(len(usual) - 2, int(_QUANTILE * len(usual)))
  long = _ABOVE_LONG * sorted(usual)[index] / middle
  least = _WITHOUT_PAST if len(usual) < _LONG_PAST else _LEAST_RATIO
  return min(_CLEAR, max(least, 1.0 + _SPREADS * spread, long))


def _usual(node: int, past: Sequence[Step], *, work: str) -> list[float]:
  """Returns the times of the same work in the past; empty if too few."""
  found = [
      step[node].busy_secs
      for step in past
      if node in step and step[node].work == work and step[node].busy_secs > 0
  ]
  return found if len(found) >= _LEAST_PAST else []


def _to_past(node: int, past: Sequence[Step], step: Step) -> float:
  """Returns the ratio of a node to its past, by that of the median node."""
  ratios = {}
  for number, now in step.items():
    if usual := _usual(number, past, work=now.work):
      ratios[number] = now.busy_secs / statistics.median(usual)
  mine = ratios.pop(node, 1.0)
  return mine / max(1.0, statistics.median(ratios.values() or [1.0]))


def _to_peers(node: int, step: Step) -> float | None:
  """Returns the ratio of a node to others with its work; None without any."""
  mine = step[node]
  others = [
      other.busy_secs
      for number, other in step.items()
      if number != node and other.work == mine.work and other.busy_secs > 0
  ]
  return mine.busy_secs / statistics.median(others) if others else None
