"""List scheduler: the order of the passes on each node, such as 1F1B.

Nodes are simulated in parallel. A free node starts the pass that can start
first; ties go to forward passes, then redundant ones, then backward passes, and
to early microbatches. Two rules restrict it: a forward pass waits while its
stage has its maximum of microbatches in flight, and backward passes of a stage
run in the order of microbatches, so that sums have the same bits on any node.

With the bounds of 1F1B (`scheduler.one_f_one_b_bounds`: 3, 2 and 1 in flight)
forward and backward passes alternate, even if stages are unequal; preferring
backward passes would run several in a row and starve later stages:

  node 0  F0 F1 F2 ............B0   F3 B1    ...B2    ...B3
  node 1  ...F0 F1 ......B0    F2 B1   F3 B2    ...B3    ......
  node 2  ......F0 B0    F1 B1    F2B2    F3 B3    ............
          warmup   steady: one forward, one backward   cooldown

Without bounds it is GPipe: all forward passes first. A redundant forward pass
runs right after the node's own forward passes of the microbatch; one of the
first stage, which needs no input, may fill idle time earlier.

It never gets stuck: of the owed backward passes of the earliest microbatch, the
one of the latest stage has its gradient, and the forward passes that lead to it
are exempt from the bound.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import heapq

from bamboo_jax import base
from bamboo_jax.schedule import (
    costs as costs_lib,
    holdings as holdings_lib,
    instruction as instruction_lib,
    lines as lines_lib,
)
from bamboo_jax.schedule.scheduling import owed as owed_lib

Op = instruction_lib.Op

_PRIORITIES = {Op.FORWARD: 0, Op.REDUNDANT_FORWARD: 1, Op.BACKWARD: 2}
_EARLY_PRIORITY = 3  # Priority of redundant forward passes.


def order_passes(
    lines: Sequence[lines_lib.Line],
    owed: Sequence[owed_lib.Owed],
    *,
    costs: costs_lib.StageCosts,
    holdings: lines_lib.Holdings,
    shadows: Mapping[base.StageId, base.NodeId] | None = None,
) -> dict[base.NodeId, instruction_lib.Row]:
  """Returns the passes of each node, without transfers; see `plan_rows`.

  `owed` has an entry per line; `shadows` are allowed only with a single line.
  Transfers take time but do not block nodes.
  """
  shared: dict[tuple[int, base.StageId, base.NodeId], set[int]] = {}
  ways = [
      _Way(line, one, costs, holdings, shadows or {}, shared)
      for line, one in zip(lines, owed, strict=True)
  ]
  queues: dict[base.NodeId, list[_Queue]] = {}
  for way in ways:
    for s, node in enumerate(way.owners):
      own = queues.setdefault(node, [])
      own += [way.forwards[s], way.backwards[s]]
  for way in ways:
    for s, node in way.shadows.items():
      queues.setdefault(node, []).append(way.redundant[s])
  rows: dict[base.NodeId, list[instruction_lib.Instruction]] = {node: [] for node in sorted(queues)}
  free_ms = dict.fromkeys(rows, 0.0)
  # The best candidate of each node; an entry that has been replaced by a
  # later one for its node is stale.
  heap: list[_Key] = []
  latest: dict[base.NodeId, _Key] = {}

  def update(node: base.NodeId) -> None:
    best = _find_best(node, free_ms[node], queues[node])
    if best is not None:
      latest[node] = best
      heapq.heappush(heap, best)

  for node in rows:
    update(node)
  while heap:
    entry = heapq.heappop(heap)
    start_ms, _, microbatch, _, node, queue = entry
    if latest[node] is not entry:
      continue
    end_ms = free_ms[node] = start_ms + queue.cost_ms
    rows[node].append(instruction_lib.Instruction(queue.stage, queue.op, microbatch))
    queue.next += 1
    neighbour = queue.way.finish(queue, microbatch, end_ms)
    update(node)
    if neighbour is not None and neighbour != node:
      update(neighbour)
  assert all(q.is_done for own in queues.values() for q in own), "stuck"
  return {node: tuple(row) for node, row in rows.items()}


@dataclasses.dataclass(slots=True, eq=False)
class _Queue:
  """Passes of one kind that a node owes for one stage, run first to last.

  Attributes:
    next: Index in `owed` of the next microbatch.
    input_ms: Arrival of each input that is present or in flight, by microbatch.
    behind: For redundant forward passes, the forward passes of the node's own
      preceding stage, which run first.
  """

  way: "_Way"
  op: Op
  stage: base.StageId
  owed: Sequence[int]
  cost_ms: float
  next: int = 0
  input_ms: dict[int, float] = dataclasses.field(default_factory=dict)
  behind: "_Queue | None" = None

  @property
  def is_done(self) -> bool:
    return self.next == len(self.owed)

  def has_passed(self, microbatch: int) -> bool:
    """Returns whether all passes up to `microbatch` have run."""
    return self.is_done or self.owed[self.next] > microbatch


class _Way:
  """A line in the simulation: owed passes and inputs of its nodes.

  The lines of a pipeline have `shared` counts of residuals on each node.
  """

  def __init__(
      self,
      line: lines_lib.Line,
      owed: owed_lib.Owed,
      costs: costs_lib.StageCosts,
      holdings: lines_lib.Holdings,
      shadows: Mapping[base.StageId, base.NodeId],
      shared: dict[tuple[int, base.StageId, base.NodeId], set[int]],
  ) -> None:
    self.owners = owners = line.owners
    self.shadows = shadows
    self._in_flight = line.in_flight
    self._transfer_ms = [
        ms if owners[s] != owners[s + 1] else 0.0 for s, ms in enumerate(costs.transfer_ms)
    ]

    def make_queue(op: Op, stage: base.StageId, left: Sequence[int]) -> _Queue:
      one = instruction_lib.Instruction(stage, op, 0)
      return _Queue(self, op, stage, left, costs.pass_ms(one))

    stages = base.stages(0, len(owners))
    self.forwards = [make_queue(Op.FORWARD, s, owed.forwards[s]) for s in stages]
    self.backwards = [make_queue(Op.BACKWARD, s, owed.backwards[s]) for s in stages]
    self.redundant = {s: make_queue(Op.REDUNDANT_FORWARD, s, owed.redundant[s]) for s in shadows}
    for s, node in shadows.items():
      self.redundant[s].behind = next(
          self.forwards[s - back] for back in range(1, len(owners)) if owners[s - back] == node
      )
    held = [holdings.get(node, holdings_lib.NOTHING) for node in owners]
    # Microbatches whose backward pass is to come, and those in flight: with
    # residuals besides.
    self._pending = [set(backwards) for backwards in owed.backwards]
    self._residuals = [
        shared.setdefault((line.pipeline, s, node), set()) for s, node in base.by_stage(owners)
    ]
    for s, residuals in enumerate(self._residuals):
      residuals |= {m for m in owed.backwards[s] if (s, m) in held[s].residuals}
    self._set_inputs(held, holdings)

  def _set_inputs(
      self, held: Sequence[holdings_lib.Holdings], holdings: lines_lib.Holdings
  ) -> None:
    last = len(held) - 1
    for s, queue in enumerate(self.forwards):
      for m in queue.owed:
        if s == 0 or (s - 1, m) in held[s].activations:
          queue.input_ms[m] = 0.0
        elif (s - 1, m) in held[s - 1].activations:
          queue.input_ms[m] = self._transfer_ms[s - 1]
    for s, queue in enumerate(self.backwards):
      for m in queue.owed:
        if s == last or (s, m) in held[s].gradients:
          queue.input_ms[m] = 0.0
        elif (s, m) in held[s + 1].gradients:
          queue.input_ms[m] = self._transfer_ms[s]
    for s, queue in self.redundant.items():
      has = holdings.get(self.shadows[s], holdings_lib.NOTHING).activations
      for m in queue.owed:
        if s == 0 or (s - 1, m) in has:
          queue.input_ms[m] = 0.0

  def is_allowed(self, queue: _Queue, microbatch: int) -> bool:
    s = queue.stage
    if queue.op is Op.REDUNDANT_FORWARD:
      return True
    residuals = self._residuals[s]
    if queue.op is Op.BACKWARD:
      if self._in_flight is None and not self.forwards[s].is_done:
        return False
      return microbatch in residuals
    if self._in_flight is None or len(residuals) < self._in_flight[s]:
      return True
    # A pass that is run for its output alone leaves no residuals, and the
    # next backward pass must not wait.
    backwards = self.backwards[s]
    return microbatch not in self._pending[s] or microbatch == backwards.owed[backwards.next]

  def finish(self, queue: _Queue, microbatch: int, end_ms: float) -> base.NodeId | None:
    """Delivers a pass's results; returns the node that may now start a pass."""
    s, owners = queue.stage, self.owners
    after = base.StageId(s + 1)
    if queue.op is not Op.BACKWARD:
      node = owners[s] if queue.op is Op.FORWARD else self.shadows[s]
      if after in self.redundant and self.shadows[after] == node:
        self.redundant[after].input_ms.setdefault(microbatch, end_ms)
    if queue.op is Op.REDUNDANT_FORWARD:
      return None
    if queue.op is Op.BACKWARD:
      self._residuals[s].discard(microbatch)
      self._pending[s].discard(microbatch)
      if s == 0:
        return None
      at_ms = end_ms + self._transfer_ms[s - 1]
      self.backwards[s - 1].input_ms.setdefault(microbatch, at_ms)
      return owners[s - 1]
    if microbatch in self._pending[s]:
      self._residuals[s].add(microbatch)
    if after == len(owners):
      return None
    at_ms = end_ms + self._transfer_ms[s]
    self.forwards[after].input_ms.setdefault(microbatch, at_ms)
    return owners[after]


# Start, ms; priority; microbatch; -stage; node; queue.
_Key = tuple[float, int, int, int, base.NodeId, _Queue]


def _find_best(node: base.NodeId, free_ms: float, queues: Sequence[_Queue]) -> _Key | None:
  """Returns the sort key of the next pass of `node`, with its queue."""
  best = None
  for queue in queues:
    if queue.next == len(queue.owed):
      continue
    m = queue.owed[queue.next]
    input_ms = queue.input_ms.get(m)
    if input_ms is None or not queue.way.is_allowed(queue, m):
      continue
    start_ms = input_ms if input_ms > free_ms else free_ms
    priority = _PRIORITIES[queue.op]
    if queue.behind is not None and not queue.behind.has_passed(m):
      priority = _EARLY_PRIORITY
    key = (start_ms, priority, m, -queue.stage, node, queue)
    if best is None or key < best:
      best = key
  return best
