"""Finds the node that is slow and makes the others wait.

The time that a node is busy in a step is compared with its own past and with
nodes that ran the same passes in the same step. A node is named if it was
clearly slower in three successive steps, and waited less than most others: in
a pipeline all wait for the slowest, which waits for no node.

  busy in ms      step 7     8     9    10       past    ratio in 8, 9, 10
  n0 (stage 0)        20    21    20    20         20    1.0
  n1 (stage 1)        30   148   151   149         30    4.9          named
  n2 (stage 0)        20    20    22    20         20    1.0

A machine that becomes slow as a whole names no node, since ratios to the past
are divided by that of the median node. Nor does a busy machine: time in which
the kernel let other programs run (`starved_secs`) does not count, and in
each of the three steps the ratio must exceed the spread of the node's own past,
and its longer steps. A suspended process is not starved.

A node that has given shares away has other work than before, or none. Whether
it is fast again is judged by its time per planned time, beside that of nodes
that are not slow. The limit lies between both speeds, and several steps must
agree, so that a node of constant speed does not get shares back and lose them
again.
"""

import collections
from collections.abc import Iterable, Iterator, Mapping, Sequence
import dataclasses
import itertools
import math
import re
import statistics
from typing import Any, Protocol, TypeVar

from bamboo_jax.schedule import costs as costs_lib
from bamboo_jax.schedule import instruction as instruction_lib

Op = instruction_lib.Op
_T = TypeVar("_T")

NUM_CONFIRMED = 3  # Steps in which a node must have been slow.
NUM_SKIPPED = 3  # The first steps in a view, which load programs and data.
NUM_KEPT = 24  # Steps that a judgement takes into account.
NUM_RECOVERED = 6  # Steps in which a node must have been fast again.
NUM_IDLE = 48  # Steps after which a slow node without work is tried.
_LEAST_PAST = 5  # Steps before these, for a comparison with the past; without
# it, a node must have been slower than others in as many steps, and in all.
_LEAST_RATIO = 1.2
_WITHOUT_PAST = 1.5  # The least ratio of a node with a shorter past than this:
_LONG_PAST = 8
_ABOVE_LONG = 1.2  # As a factor of this quantile of the past:
_QUANTILE = 0.85
_CLEAR = 2.5  # A ratio that is not noise, whatever the past.
_SPREADS = 6.0  # Median deviations from the past that count as noise.


@dataclasses.dataclass(frozen=True)
class NodeStep:
  """Times of a node in a step.

  Attributes:
    work: The number of its forward and backward passes, `1B*4 1F*4`; only equal
      work is compared.
    busy_secs: Time spent in these passes.
    waited_secs: Time spent waiting for values of other nodes; None if unknown.
    starved_secs: Time in which it was ready to run, but the processors of its
      machine ran other programs; part of `busy_secs` or `waited_secs`.
  """

  work: str
  busy_secs: float
  waited_secs: float | None = None
  starved_secs: float = 0.0

  @property
  def net_secs(self) -> float:
    """The busy time, less any time in which other programs may have run."""
    return self.busy_secs - self.starved_secs


Step = Mapping[int, NodeStep]


@dataclasses.dataclass(frozen=True)
class Named:
  """A node that was found to be slow.

  Attributes:
    step: After which this was found.
    number: Of the node.
    node: Its name.
    factor: How many times slower it was than it should be.
    named_before: How often a node of the same host was named before.
    over_step: After which it was fast again; 0: not known.
  """

  step: int
  number: int
  node: str
  host: str
  factor: float
  busy_ms: float
  named_before: int = 0
  over_step: int = 0

  @property
  def values(self) -> dict[str, int | float | str]:
    """What is told of it, without its step."""
    told = dataclasses.asdict(self)
    del told["step"], told["number"]
    return {name: value for name, value in told.items() if value != 0}


def describe(told: Mapping[str, Any]) -> str:
  """Returns a sentence from the event "slow", see `Named.values`."""
  before = (
      f", named {n} times before" if (n := told.get("named_before")) else ""
  )
  return (
      f"{told['node']} on {told['host']}{before}, {told['factor']} times as "
      "slow as it should be"
  )


class TimedInstruction(Protocol):
  """An instruction that has run; see `profile.recorder.MeasuredInstruction`."""

  @property
  def node(self) -> int:
    """The node that ran it."""

  @property
  def instruction(self) -> instruction_lib.Instruction:
    """What it ran."""

  @property
  def start_secs(self) -> float:
    """Its start, on `time.perf_counter`."""

  @property
  def end_secs(self) -> float:
    """Its end."""


def measure(
    measured: Iterable[TimedInstruction],
    *,
    secs: float,
    waited_secs: float,
    starved_secs: float,
    is_alone: bool,
) -> Step:
  """Returns the times of local nodes in a step.

  Args:
    secs: The duration of the step, waiting included.
    waited_secs: The time that the process waited for others.
    starved_secs: See `NodeStep`, of the thread that runs the rows.
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
        starved_secs if is_alone else 0.0,
    )
  return found


def find_slow(history: Sequence[Step]) -> dict[int, float]:
  """Returns the factor by which each slow node is slower than the others.

  Args:
    history: Times of all nodes in the last steps, oldest first; at most
      `NUM_KEPT` count.
  """
  history = history[-NUM_KEPT:]
  past, recent = history[:-NUM_CONFIRMED], history[-NUM_CONFIRMED:]
  if len(recent) < NUM_CONFIRMED:
    return {}
  total = _add_up(recent)
  usual = {n: _usual(n, past, work=one.work) for n, one in total.items()}
  ratios = [_to_past(usual, step) for step in recent]
  slow = {}
  for node in total:
    if not _is_waited_for(node, total):
      continue
    if usual[node]:
      found = min(one[node] for one in ratios)
      found = min(found, _to_peers(node, total, missing=math.inf))
      is_slow = found > _noise_limit(usual[node])
    else:
      steps = [step for step in history if node in step]
      found = min(_to_peers(node, step, missing=0.0) for step in steps)
      is_slow = len(steps) >= _LEAST_PAST and found > _WITHOUT_PAST
    if is_slow:
      slow[node] = found
  return slow


def count_fast(
    history: Sequence[Step],
    slow: Mapping[int, float],
    costs: costs_lib.StageCosts,
) -> dict[int, int]:
  """Returns for how many steps, up to the last one, nodes have been fast again.

  Negative: for how many they have still been slow; 0: no work in the last step.

  Args:
    history: Each node in the last steps, oldest first.
    slow: Nodes that were slow, with the factor by which they were.
    costs: Planned times of passes.
  """
  paces = [_find_paces(step, slow, costs) for step in history]
  counts = {}
  for node, factor in slow.items():
    are_fast = [
        step[node] < math.sqrt(factor) if node in step else None
        for step in reversed(paces)
    ]
    now, run = next(itertools.groupby(are_fast), (None, ()))
    counts[node] = 0 if now is None else len([*run]) * (1 if now else -1)
  return counts


def _find_paces(
    step: Step, slow: Mapping[int, float], costs: costs_lib.StageCosts
) -> dict[int, float]:
  """Returns the busy time per planned time, by that of the usual node.

  Starved time counts, since it delays all nodes of a busy machine.
  """
  planned_ms = {n: _plan_ms(one.work, costs) for n, one in step.items()}
  paces = {n: step[n].busy_secs / ms for n, ms in planned_ms.items() if ms}
  usual = [pace for node, pace in paces.items() if node not in slow]
  median = statistics.median(usual) if usual else 0.0
  return {n: pace / median for n, pace in paces.items()} if median else {}


def _plan_ms(work: str, costs: costs_lib.StageCosts) -> float:
  """Returns the planned time of the passes that `NodeStep.work` counts."""
  times_ms = {Op.FORWARD: costs.forward_ms, Op.BACKWARD: costs.backward_ms}
  kinds = re.findall(r"(\d+)([FB])\*(\d+)", work)
  return sum(int(num) * times_ms[Op(op)][int(s)] for s, op, num in kinds)


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
          sum(one.starved_secs for one in found),
      )
  return total


def _is_waited_for(node: int, step: Step) -> bool:
  """Whether a node waited less than most others, as far as is known."""
  waits = [
      other.waited_secs
      for other in _without(node, step)
      if other.waited_secs is not None
  ]
  mine = step[node].waited_secs
  return not waits or mine is None or mine < statistics.median(waits)


def _noise_limit(usual: Sequence[NodeStep]) -> float:
  """Returns the least ratio that is not noise, from steps in the past."""
  ratios = sorted(_ratios(usual, usual))
  spread = statistics.median(abs(ratio - 1.0) for ratio in ratios)
  long = _ABOVE_LONG * ratios[min(len(usual) - 2, int(_QUANTILE * len(usual)))]
  least = _WITHOUT_PAST if len(usual) < _LONG_PAST else _LEAST_RATIO
  return min(_CLEAR, max(least, 1.0 + _SPREADS * spread, long))


def _usual(node: int, past: Sequence[Step], *, work: str) -> list[NodeStep]:
  """Returns the steps of the same work in the past; empty if too few."""
  found = [
      step[node]
      for step in past
      if node in step and step[node].work == work and step[node].busy_secs > 0
  ]
  return found if len(found) >= _LEAST_PAST else []


def _ratios(
    usual: Sequence[NodeStep], steps: Iterable[NodeStep]
) -> list[float]:
  """Returns by how much longer than usual steps took, without starving."""
  net_secs = max(0.0, statistics.median(s.net_secs for s in usual))
  busy_secs = statistics.median(s.busy_secs for s in usual)
  return [1.0 + (s.net_secs - net_secs) / busy_secs for s in steps]


def _to_past(
    usual: Mapping[int, Sequence[NodeStep]], step: Step
) -> dict[int, float]:
  """Returns ratios of nodes to their past, by that of the median of others."""
  ratios = {n: _ratios(past, [step[n]])[0] for n, past in usual.items() if past}
  return {
      node: ratio
      / max(1.0, statistics.median([*_without(node, ratios)] or [1.0]))
      for node, ratio in ratios.items()
  }


def _to_peers(node: int, step: Step, *, missing: float) -> float:
  """Returns the ratio of a node to others with its work, if there are any."""
  peers = [
      other
      for other in _without(node, step)
      if other.work == step[node].work and other.busy_secs > 0
  ]
  return _ratios(peers, [step[node]])[0] if peers else missing


def _without(node: int, values: Mapping[int, _T]) -> Iterator[_T]:
  return (value for number, value in values.items() if number != node)
