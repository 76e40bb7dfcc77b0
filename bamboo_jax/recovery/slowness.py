"""Finds the node that is slow and makes the others wait.

The time that a node is busy in a step is compared with its own past and with
its peers, both by kind of pass, so that a node whose passes change still has a
past. A node is named if it was clearly slower in three successive steps, and
the others waited for it: in a pipeline all wait for the slowest, which waits
for no node.

  busy in ms      step 7     8     9    10       past    ratio in 8, 9, 10
  n0 (stage 0)        20    21    20    20         20    1.0
  n1 (stage 1)        30   148   151   149         30    4.9          named
  n2 (stage 0)        20    20    22    20         20    1.0

A machine that becomes slow as a whole names no node, since ratios to the past
are divided by that of the median node. Nor does a busy machine: time in which
the kernel let other programs run (`starved_secs`) does not count, and in
each of the three steps the ratio must exceed the spread of the node's own past,
and its longer steps. A suspended process is not starved. Its suspension is
measured as such, is zero on healthy nodes, and needs no past.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
import dataclasses
import math
import re
import statistics
from typing import Any, TypeVar

from bamboo_jax import base

NodeId = base.NodeId
_T = TypeVar("_T")
_K = TypeVar("_K")

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
_CLEAR = 2.5  # A ratio that is not noise, whatever the past.
_SUSPENDED = 0.08  # The mean part of steps, above that of the median node.
_SPREADS = 6.0  # Median deviations from the past that count as noise.


@dataclasses.dataclass(frozen=True)
class NodeStep:
  """Times of a node in a step.

  Attributes:
    work: The number of its forward and backward passes, `1B*4 1F*4`.
    busy_secs: Time spent in these passes.
    waited_secs: Time spent waiting for values of other nodes; None if unknown.
    starved_secs: Time in which it was ready to run, but the processors of its
      machine ran other programs; part of `busy_secs` or `waited_secs`.
    suspended_secs: Time in which its process could not run at all; part of
      `busy_secs` or `waited_secs`, and not of `starved_secs`.
    pass_secs: Time of its passes by kind, such as `1F`. Without it, only equal
      work is compared.
    waited_for: Time in receives, by the node that was waited for.
  """

  work: str
  busy_secs: float
  waited_secs: float | None = None
  starved_secs: float = 0.0
  suspended_secs: float = 0.0
  pass_secs: Mapping[str, float] = dataclasses.field(default_factory=dict)
  waited_for: Mapping[NodeId, float] = dataclasses.field(default_factory=dict)

  @property
  def suspended_part(self) -> float:
    """The part of the step for which it was suspended, below 1."""
    secs = self.busy_secs + (self.waited_secs or 0.0)
    return min(0.99, self.suspended_secs / secs) if secs > 0 else 0.0

  @property
  def net_secs(self) -> float:
    """The busy time, less any time in which other programs may have run."""
    return self.busy_secs - self.starved_secs

  def with_work(self, work: str) -> "NodeStep | None":
    """Returns a step with other passes, as far as it has run such passes."""
    if work == self.work:
      return self
    now, then = count_passes(work), count_passes(self.work)
    if not self.pass_secs or not now.keys() <= self.pass_secs.keys():
      return None
    pass_secs = {k: n * self.pass_secs[k] / then[k] for k, n in now.items()}
    more_secs = sum(pass_secs.values()) - sum(self.pass_secs.values())
    busy_secs = self.busy_secs + more_secs
    return dataclasses.replace(self, work=work, busy_secs=busy_secs, pass_secs=pass_secs)


def count_passes(work: str) -> dict[str, int]:
  """Returns the numbers that `NodeStep.work` holds, by kind."""
  return {k: int(num) for k, num in re.findall(r"(\w+)\*(\d+)", work)}


Step = Mapping[NodeId, NodeStep]


@dataclasses.dataclass(frozen=True)
class Named:
  """A node that was found to be slow.

  Attributes:
    step: After which this was found.
    number: Of the node.
    node: Its name.
    factor: How many times slower it was than it should be.
    named_before: How often a node of the same host was named before.
  """

  step: base.StepId
  number: NodeId
  node: str
  host: str
  factor: float
  busy_ms: float
  named_before: int = 0

  @property
  def values(self) -> dict[str, int | float | str]:
    """What is told of it, without its step."""
    told = dataclasses.asdict(self)
    del told["step"], told["number"]
    return {name: value for name, value in told.items() if value != 0}


def describe(told: Mapping[str, Any]) -> str:
  """Returns a sentence from the event "slow", see `Named.values`."""
  before = f", named {n} times before" if (n := told.get("named_before")) else ""
  return (
      f"{told['node']} on {told['host']}{before}, {told['factor']} times as " "slow as it should be"
  )


def find_slow(history: Sequence[Step]) -> dict[NodeId, float]:
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
  slow = _find_suspended(recent)
  for node in total:
    if not _is_waited_for(node, past, total):
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
      slow[node] = max(found, slow.get(node, 0.0))
  return slow


def _find_suspended(steps: Sequence[Step]) -> dict[NodeId, float]:
  """Returns nodes that were suspended in all steps, as `find_slow` does."""
  parts = [{n: s.suspended_part for n, s in step.items()} for step in steps]
  found = {}
  for node in steps[-1]:
    more = [
        part[node] - statistics.median([*_without(node, part)] or [0.0])
        for part in parts
        if node in part
    ]
    mean = statistics.mean(more)
    if len(more) == len(steps) and min(mean, 2 * min(more)) > _SUSPENDED:
      found[node] = 1 / (1 - mean)
  return found


def _add_up(steps: Sequence[Step]) -> Step:
  """Returns sums over steps, as with the last work, of nodes in all of them."""
  total = {}
  for node, last in steps[-1].items():
    found = _with_work(last.work, (s[node] for s in steps if node in s))
    if len(found) == len(steps):
      waits = [w for one in found if (w := one.waited_secs) is not None]
      total[node] = NodeStep(
          last.work,
          sum(one.busy_secs for one in found),
          sum(waits) if len(waits) == len(found) else None,
          sum(one.starved_secs for one in found),
          pass_secs=_add(one.pass_secs for one in found),
          waited_for=_add(one.waited_for for one in found),
      )
  return total


def _add(values: Iterable[Mapping[_K, float]]) -> dict[_K, float]:
  total: dict[_K, float] = {}
  for one in values:
    for key, value in one.items():
      total[key] = total.get(key, 0.0) + value
  return total


def _with_work(work: str, steps: Iterable[NodeStep]) -> list[NodeStep]:
  """Returns steps with other passes, without those that cannot be compared."""
  found = [step.with_work(work) for step in steps]
  return [step for step in found if step is not None and step.busy_secs > 0]


def _is_waited_for(node: NodeId, past: Sequence[Step], recent: Step) -> bool:
  """Whether a node made others wait, as far as is known.

  Since it is slow, they must wait longer for it, less its own waits, by half of
  the time that it is busy longer; else it waited less than most of them.
  """
  before = [s for s in past if node in s and s[node].waited_for]
  if recent[node].waited_for and len(before) >= _LEAST_PAST:
    num = NUM_CONFIRMED  # Steps that were added up.
    waits = [_waited_for_it(node, step) for step in before]
    busy_secs = [step[node].busy_secs for step in before]
    more_secs = recent[node].busy_secs / num - statistics.median(busy_secs)
    longer_secs = _waited_for_it(node, recent) / num - statistics.median(waits)
    return longer_secs > more_secs / 2
  others = [other.waited_secs for other in _without(node, recent)]
  waits = [secs for secs in others if secs is not None]
  mine = recent[node].waited_secs
  return not waits or mine is None or mine < statistics.median(waits)


def _waited_for_it(node: NodeId, step: Step) -> float:
  """Returns how long others waited for a node, less its own waits."""
  for_it = sum(s.waited_for.get(node, 0.0) for s in _without(node, step))
  return for_it - (step[node].waited_secs or 0.0)


def _noise_limit(usual: Sequence[NodeStep]) -> float:
  """Returns the least ratio that is not noise, from steps in the past."""
  ratios = sorted(_ratios(usual, usual))
  spread = statistics.median(abs(ratio - 1.0) for ratio in ratios)
  long = _ABOVE_LONG * ratios[min(len(usual) - 2, int(_QUANTILE * len(usual)))]
  least = _WITHOUT_PAST if len(usual) < _LONG_PAST else _LEAST_RATIO
  return min(_CLEAR, max(least, 1.0 + _SPREADS * spread, long))


def _usual(node: NodeId, past: Sequence[Step], *, work: str) -> list[NodeStep]:
  """Returns the steps of the same work in the past; empty if too few."""
  found = _with_work(work, (step[node] for step in past if node in step))
  return found if len(found) >= _LEAST_PAST else []


def _ratios(usual: Sequence[NodeStep], steps: Iterable[NodeStep]) -> list[float]:
  """Returns by how much longer than usual steps took, without starving."""
  net_secs = max(0.0, statistics.median(s.net_secs for s in usual))
  busy_secs = statistics.median(s.busy_secs for s in usual)
  return [1.0 + (s.net_secs - net_secs) / busy_secs for s in steps]


def _to_past(usual: Mapping[NodeId, Sequence[NodeStep]], step: Step) -> dict[NodeId, float]:
  """Returns ratios of nodes to their past, by that of the median of others."""
  ratios = {
      n: _ratios(past, _with_work(past[0].work, [step[n]]))[0] for n, past in usual.items() if past
  }
  return {
      node: ratio / max(1.0, statistics.median([*_without(node, ratios)] or [1.0]))
      for node, ratio in ratios.items()
  }


def _to_peers(node: NodeId, step: Step, *, missing: float) -> float:
  """Returns the ratio of a node to others with its work, if there are any."""
  peers = _with_work(step[node].work, _without(node, step))
  return _ratios(peers, [step[node]])[0] if peers else missing


def _without(node: NodeId, values: Mapping[NodeId, _T]) -> Iterator[_T]:
  return (value for number, value in values.items() if number != node)
