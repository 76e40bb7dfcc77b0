"""Finds the node that is slow and makes the others wait.

A node is named if in three successive steps it was more than 1.5 times as slow
as its own past and as its peers, and the others waited for it: in a pipeline all
wait for the slowest, which waits least.

  busy in ms      steps before    step 8     9    10    times its past
  n0 (stage 0)        19 to 22        21    20    20    1.0
  n1 (stage 1)        28 to 35       148   151   149    4.9    named
  n2 (stage 0)        19 to 22        20    22    20    1.0

Its peers are all other nodes, by how slow each is beside its own past; three of
four must be faster. So a machine that becomes slow as a whole names no node. On a
busy machine single steps of a healthy node take several times as long as usual. So
each of the three steps must also be longer than every step of the past, and time in
which the kernel let other programs run (`starved_secs`) does not count. A node that
is slow from the start of a view is not found, as it has no other past.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import statistics

from bamboo_jax import base

NodeId = base.NodeId

NUM_CONFIRMED = 3  # Steps in which a node must have been slow.
NUM_SKIPPED = 3  # The first steps in a view, which load programs and data.
NUM_KEPT = 64  # Steps that a judgement takes into account.
# Steps of a past. If noise is equal in n + 3 steps, the last three are the longest
# of them with a probability of 6 / ((n + 1) (n + 2) (n + 3)).
LEAST_PAST = 12
_LEAST_FACTOR = 1.5


@dataclasses.dataclass(frozen=True)
class NodeStep:
  """Times of a node in a step.

  Attributes:
    work: The number of its forward and backward passes, `1B*4 1F*4`; only steps
      of equal work are compared.
    busy_secs: Time in these passes; if the node is alone in its process, all
      time but waits, so also that for which the process was suspended.
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
    return max(0.0, self.busy_secs - self.starved_secs)


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
    told = dataclasses.asdict(self).items()
    return {name: value for name, value in told if value != 0 and name not in ("step", "number")}


def find_slow(history: Sequence[Step]) -> dict[NodeId, float]:
  """Returns the factor by which each slow node is slower than it should be.

  Args:
    history: Times of all nodes in the last steps, oldest first; at most
      `NUM_KEPT` count.
  """
  past, recent = history[-NUM_KEPT:-NUM_CONFIRMED], history[-NUM_CONFIRMED:]
  if len(past) < LEAST_PAST:
    return {}
  found = {node: _find_factors(node, past, recent) for node in recent[-1]}
  slow = {}
  for node, (own, is_longer) in found.items():
    if is_longer and all(_is_waited_for(node, step) for step in recent):
      others = [factors for number, (factors, _) in found.items() if factors and number != node]
      # Three of four do not exceed these.
      most = [sorted(factors)[3 * len(others) // 4] for factors in zip(*others, strict=True)]
      pairs = zip(own, most or [1.0] * len(own), strict=True)
      factor = min(mine / max(1.0, other) for mine, other in pairs)
      if factor > _LEAST_FACTOR:
        slow[node] = factor
  return slow


def _find_factors(
    node: NodeId, past: Sequence[Step], recent: Sequence[Step]
) -> tuple[list[float], bool]:
  """Returns how many times as slow as in the median step of its past a node is.

  And whether each recent step is longer than all of a past of enough steps. No factors
  if there is no step of equal work. Differences without starved time, beside the whole
  busy time: what is left of a node that starves most of the time may be next to nothing.
  """
  work = recent[-1][node].work
  before, now = (
      [one for step in steps if (one := step.get(node)) and one.work == work and one.busy_secs > 0]
      for steps in (past, recent)
  )
  if not before or len(now) < len(recent):
    return [], False
  net_secs, busy_secs = [one.net_secs for one in before], [one.busy_secs for one in before]
  usual_secs, whole_secs = statistics.median(net_secs), statistics.median(busy_secs)
  is_longer = len(before) >= LEAST_PAST and min(one.net_secs for one in now) > max(net_secs)
  return [1.0 + (one.net_secs - usual_secs) / whole_secs for one in now], is_longer


def _is_waited_for(node: NodeId, step: Step) -> bool:
  """Whether a node waited less than most, so that they waited for it."""
  mine = step[node].waited_secs
  others = [s.waited_secs for n, s in step.items() if n != node and s.waited_secs is not None]
  return mine is None or not others or mine < statistics.median(others)
