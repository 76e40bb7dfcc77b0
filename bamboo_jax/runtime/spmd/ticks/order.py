"""Assigns passes to ticks; see `tick_table`."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
from typing import NamedTuple

from bamboo_jax import base
from bamboo_jax.runtime.spmd.ticks import tick_table as table_lib
from bamboo_jax.schedule import (
    costs as costs_lib,
    holdings as holdings_lib,
    instruction as instruction_lib,
)

Instruction = instruction_lib.Instruction
Op = instruction_lib.Op
Key = table_lib.Key
# Passes for a node's own stages, in order, by tick and node.
Passes = list[list[list[tuple[Op, Key]]]]

_ROUNDING = 1e-9  # Relative error bound of sums of times.


@dataclasses.dataclass(frozen=True)
class Work:
  """Owner of each stage, and data of each node, numbered along the ring."""

  owners: tuple[int, ...]
  start: tuple[table_lib.Held, ...]

  def has_residuals(self, node: int, key: Key) -> bool:
    """Returns whether a node has residuals of `key` at the start."""
    held = self.start[node]
    return key in held.residuals or key in held.host or key in held.accumulated


def align(
    rows: Sequence[Sequence[tuple[Op, base.StageId, int]]],
    work: Work,
    *,
    most_residuals: int | None,
) -> Passes:
  """Returns the passes of all rows by tick, each as early as its inputs allow.

  `rows` has (operation, stage, microbatch) for each node; only passes of owners
  count. A tick takes the next forward and the next backward pass of a row, in
  either order. Raises `ValueError` if rows deadlock.
  """
  # Reversed, to pop from the end.
  queues = [
      [[(op, (s, m)) for op, s, m in row if op is own][::-1] for own in (Op.FORWARD, Op.BACKWARD)]
      for row in rows
  ]
  done: set[tuple[Op, Key]] = set()  # Passes of earlier ticks.
  in_flight = [len(held.residuals) for held in work.start]

  def take(node: int, limit: int | None) -> list[tuple[Op, Key]]:
    """Pops the passes of a node in a tick; keeps at most `limit` in flight."""
    ran: list[tuple[Op, Key]] = []
    # Also in this tick, where forward passes are first.
    has_run = lambda key: key in done or key in ran
    for queue in filter(None, queues[node]):
      op, key = queue[-1]
      is_forward = op is Op.FORWARD
      is_full = is_forward and limit is not None and in_flight[node] >= limit
      if is_full or not _is_ready(node, op, key, work, has_run):
        continue
      ran.append(queue.pop())
      if is_forward and not work.has_residuals(node, key):
        in_flight[node] += 1
      # Those from the host take a slot in this tick only.
      elif not is_forward and key not in work.start[node].host:
        in_flight[node] -= 1
    return ran

  passes = []
  while any(queue for node in queues for queue in node):
    for limit in (most_residuals, None):  # A stuck node may exceed it.
      tick = [take(node, limit) for node in range(len(queues))]
      if any(tick):
        break
    else:
      raise ValueError("The rows wait for each other.")
    done.update(p for ran in tick for p in ran)
    passes.append(tick)
  return passes


def _is_ready(
    node: int, op: Op, key: Key, work: Work, has_run: Callable[[tuple[Op, Key]], bool]
) -> bool:
  (stage, m), held = key, work.start[node]
  if op is Op.FORWARD:
    inputs = holdings_lib.input_of(key)
    return not stage or inputs in held.activations or has_run((op, inputs))
  has_grad = stage + 1 == len(work.owners) or key in held.grads
  return (work.has_residuals(node, key) or has_run((Op.FORWARD, key))) and (
      has_grad or has_run((op, (base.StageId(stage + 1), m)))
  )


class PlacedPasses(NamedTuple):
  """Passes with new ticks, and redundant microbatches by tick and stage."""

  passes: Passes
  redundant: Mapping[tuple[int, int], list[int]]


def place_redundant(
    passes: Passes, *, costs: costs_lib.StageCosts, budget: float, num_microbatches: int
) -> PlacedPasses:
  """Places redundant forward passes in ticks.

  Node s owns stage s, of at least two. Each pass goes to the first of the ticks
  where it lengthens the step least, which may be a new one at the end. A node
  takes microbatches in order and skips none, as their losses are summed in
  order. The step may grow by the fraction `budget`.
  """
  ticks = _Ticks(passes, costs)
  left_ms = budget * sum(ticks.lasts_ms) if budget else 0.0
  stages = base.stages(costs.num_stages)
  after = dict.fromkeys(stages, 0)  # First tick still open to a stage.
  for m in range(num_microbatches):
    for s in list(after):
      longer_ms, t = ticks.find_best(s, m, after[s])
      if longer_ms > left_ms:
        del after[s]
        continue
      ticks.place(t, s, m, longer_ms)
      left_ms -= longer_ms
      after[s] = t
  return PlacedPasses(ticks.passes, ticks.redundant)


class _Best(NamedTuple):
  longer_ms: float
  tick: int


class _Ticks:

  def __init__(self, passes: Passes, costs: costs_lib.StageCosts) -> None:
    self.passes = list(passes)
    self._costs = costs
    self._own_ms = [
        [sum(costs.pass_ms(Instruction(s, op, m)) for op, (s, m) in ran) for ran in tick]
        for tick in passes
    ]
    self.lasts_ms = [max(tick) for tick in self._own_ms]
    self.redundant: dict[tuple[int, int], list[int]] = {}
    self._slack_ms = _ROUNDING * sum(self.lasts_ms)
    self._made = {
        key: t
        for t, tick in enumerate(passes)
        for ran in tick
        for op, key in ran
        if op is Op.FORWARD
    }

  def find_best(self, stage: base.StageId, microbatch: int, after: int) -> _Best:
    """Returns the first tick in which a pass lengthens the step least."""
    successor = (stage + 1) % self._costs.num_stages
    took_ms = self._costs.redundant_ms[successor]
    # The last stage has its input from the start: it is that of the first.
    first = self._made[stage, microbatch] if successor else 0
    first = max(first, after)
    best = _Best(took_ms, len(self.passes))
    for t in range(first, len(self.passes)):
      if len(self.redundant.get((t, stage), ())) == table_lib.MAX_REDUNDANT:
        continue
      longer_ms = self._own_ms[t][stage] + took_ms - self.lasts_ms[t]
      if longer_ms <= self._slack_ms:
        return _Best(0.0, t)
      best = min(best, _Best(longer_ms, t))
    return best

  def place(self, tick: int, stage: base.StageId, microbatch: int, longer_ms: float) -> None:
    if tick == len(self.passes):
      nodes = range(self._costs.num_stages)
      self.passes.append([[] for _ in nodes])
      self._own_ms.append([0.0 for _ in nodes])
      self.lasts_ms.append(0.0)
    self.redundant.setdefault((tick, stage), []).append(microbatch)
    successor = (stage + 1) % self._costs.num_stages
    self._own_ms[tick][stage] += self._costs.redundant_ms[successor]
    self.lasts_ms[tick] += max(0.0, longer_ms)
