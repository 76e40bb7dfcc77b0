"""One simulation of a step, or of its rest: order of passes, transfers, times.

Nodes run in parallel, and values are buffered: a send ends at once, the value
arrives `transfer_ms` later, and no receive keeps its sender waiting. A free
node starts the pass that can start first; ties go to forward passes, then to
early microbatches. Two rules restrict it: a forward pass waits while its stage
has its maximum of microbatches in flight, and backward passes of a stage run in
the order of microbatches, so that sums have the same bits on any node.

With the bounds of 1F1B (3, 2 and 1 in flight) forward and backward passes
alternate, even if stages are unequal; preferring backward passes would run
several in a row and starve later stages:

  node 0  F0 F1 F2 ............B0   F3 B1    ...B2    ...B3
  node 1  ...F0 F1 ......B0    F2 B1   F3 B2    ...B3    ......
  node 2  ......F0 B0    F1 B1    F2B2    F3 B3    ............
          warmup   steady: one forward, one backward   cooldown

Without bounds it is GPipe: all forward passes first.

A send follows the pass that makes its value, and a receive precedes the pass
that reads it, so rows cannot deadlock. A link delivers in the order of sends: if
lines share one, values that were sent earlier are received first. It never gets stuck: of the owed
backward passes of the earliest microbatch, the one of the latest stage has its
gradient, and the forward passes that lead to it are exempt from the bound. The
time is about proportional to the number of instructions.
"""

import collections
from collections.abc import Hashable, Iterator, Sequence
import dataclasses
import heapq
import itertools

from bamboo_jax import base
from bamboo_jax.schedule import (
    costs as costs_lib,
    holdings as holdings_lib,
    instruction as instruction_lib,
    lines as lines_lib,
    timeline as timeline_lib,
)

Op = instruction_lib.Op
Slot = timeline_lib.Slot
Transfer = instruction_lib.Transfer


def simulate(
    lines: Sequence[lines_lib.Line],
    *,
    costs: costs_lib.StageCosts,
    holdings: lines_lib.Holdings | None = None,
) -> timeline_lib.Timeline:
  """Returns the rows that finish the step of all lines, with their times.

  Args:
    holdings: Data that each node holds now; a missing node holds nothing.

  Raises `base.InfeasibleError` if the step cannot be finished from these holdings.
  """
  simulation = _Simulation(costs)
  for line in lines:
    simulation.add(line, holdings or {})
  return simulation.run()


_OPS = (Op.FORWARD, Op.BACKWARD)


@dataclasses.dataclass(slots=True, eq=False)
class _Stage:
  """What the owner of a stage of a line owes and has.

  Pairs are of its forward and its backward passes.

  Attributes:
    left: Microbatches of owed passes, the next one last.
    pending: The microbatches of owed backward passes.
    kept: Microbatches whose residuals the node keeps; of all lines of a
      pipeline.
    most: Bound on `kept`.
    at_ms: Arrival of the input of a pass, there or in flight, by microbatch: an
      activation, or the gradient of the output.
    received: Transfer of that input.
    to: The stage that gets the result of a pass.
  """

  stage: base.StageId
  node: base.NodeId
  left: tuple[list[int], list[int]]
  pending: set[int]
  kept: set[int]
  most: int | None
  at_ms: tuple[dict[int, float], ...] = dataclasses.field(default_factory=lambda: ({}, {}))
  received: tuple[dict[int, Transfer], ...] = dataclasses.field(default_factory=lambda: ({}, {}))
  to: "list[_Stage | None]" = dataclasses.field(default_factory=lambda: [None, None])

  def choices(self) -> Iterator[tuple[float, bool, int]]:
    """Yields the passes that may run: arrival of their input, is backward, microbatch."""
    forwards, backwards = self.left
    if forwards:
      m = forwards[-1]
      # A pass that is run for its output alone leaves no residuals, and the
      # next backward pass must not wait.
      if m in self.at_ms[0] and (
          self.most is None
          or len(self.kept) < self.most
          or m not in self.pending
          or m == backwards[-1]
      ):
        yield self.at_ms[0][m], False, m
    if backwards and (self.most is not None or not forwards):
      m = backwards[-1]
      if m in self.kept and m in self.at_ms[1]:
        yield self.at_ms[1][m], True, m


# Start, ms; whether it is a backward pass; microbatch; -stage; node; stage.
_Key = tuple[float, bool, int, int, base.NodeId, _Stage]


class _Simulation:

  def __init__(self, costs: costs_lib.StageCosts) -> None:
    self._costs = costs
    self._stages: dict[base.NodeId, list[_Stage]] = {}
    self._free_ms: dict[base.NodeId, float] = {}
    self._slots: list[Slot] = []
    # By their reader: whether it is a backward pass, stage and microbatch.
    self._transfers: dict[tuple[bool, int, int], Transfer] = {}
    # Sent and not received, by link: kind, stage, and both nodes.
    self._links = collections.defaultdict[Hashable, collections.deque[Transfer]](collections.deque)
    # By pipeline, stage and node.
    self._kept = collections.defaultdict[Hashable, set[int]](set)

  def add(self, line: lines_lib.Line, holdings: lines_lib.Holdings) -> None:
    """Adds the stages of a line, and what is there and sent at the start."""
    owed, stages = lines_lib.find_owed(line, holdings), list[_Stage]()
    hold = lambda node: holdings.get(node, holdings_lib.NOTHING)
    for s, node in base.by_stage(line.owners):
      held, backwards = hold(node), owed.backwards[s]
      kept = self._kept[line.pipeline, s, node]
      kept |= {m for m in backwards if (s, m) in held.residuals}
      left = owed.forwards[s][::-1], backwards[::-1]
      most = None if line.in_flight is None else line.in_flight[s]
      one = _Stage(s, node, left, {*backwards}, kept, most)
      is_last = s + 1 == len(line.owners)
      there = [m for m in left[0] if not s or (s - 1, m) in held.activations]
      one.at_ms[False].update(dict.fromkeys(there, 0.0))
      there = [m for m in backwards if is_last or (s, m) in held.gradients]
      one.at_ms[True].update(dict.fromkeys(there, 0.0))
      stages.append(one)
      self._stages.setdefault(node, []).append(one)
    for one, after in itertools.pairwise(stages):
      one.to[False], after.to[True] = after, one
    for t in owed.transfers:
      is_grad, held = t.kind == "G", hold(t.source)
      reader, maker = stages[t.stage : t.stage + 2][:: 1 if is_grad else -1]
      self._transfers[is_grad, reader.stage, t.microbatch] = t
      if (t.stage, t.microbatch) in (held.gradients if is_grad else held.activations):
        self._deliver(maker, is_grad, t.microbatch, 0.0)

  def run(self) -> timeline_lib.Timeline:
    self._free_ms = dict.fromkeys(sorted(self._stages), 0.0)
    # The best choice of each node; an entry that has been replaced by a later
    # one for its node is stale.
    heap: list[_Key] = []
    latest: dict[base.NodeId, _Key | None] = {}

    def update(node: base.NodeId) -> None:
      latest[node] = best = self._find_best(node)
      if best is not None:
        heapq.heappush(heap, best)

    for node in self._stages:
      update(node)
    while heap:
      entry = heapq.heappop(heap)
      start_ms, is_backward, m, _, node, stage = entry
      if latest[node] is not entry:
        continue
      other = self._run(stage, is_backward, m, start_ms)
      update(node)
      if other is not None and other.node != node:
        update(other.node)
    owing = [one for own in self._stages.values() for one in own if any(one.left)]
    assert not owing, f"stuck: {owing}"
    return timeline_lib.Timeline.of(self._slots, self._free_ms)

  def _find_best(self, node: base.NodeId) -> _Key | None:
    best, free_ms = None, self._free_ms[node]
    for stage in self._stages[node]:
      for at_ms, is_backward, m in stage.choices():
        key = (max(at_ms, free_ms), is_backward, m, -stage.stage, node, stage)
        if best is None or key < best:
          best = key
    return best

  def _run(self, stage: _Stage, is_backward: bool, m: int, start_ms: float) -> _Stage | None:
    """Runs a pass and delivers its result; returns the stage that gets it."""
    if transfer := stage.received[is_backward].pop(m, None):
      link, one = self._links[_link_of(transfer)], None
      # All that was sent before it on its link is received before, too.
      while one is not transfer and transfer in link:
        one = link.popleft()
        self._slots.append(Slot(one.destination, one.receive, start_ms, start_ms))
    i = instruction_lib.Instruction(stage.stage, _OPS[is_backward], m)
    end_ms = self._free_ms[stage.node] = start_ms + self._costs.pass_ms(i)
    self._slots.append(Slot(stage.node, i, start_ms, end_ms))
    stage.left[is_backward].pop()
    if is_backward:
      stage.pending.discard(m)
      stage.kept.discard(m)
    elif m in stage.pending:
      stage.kept.add(m)
    return self._deliver(stage, is_backward, m, end_ms)

  def _deliver(self, stage: _Stage, is_backward: bool, m: int, at_ms: float) -> _Stage | None:
    """Passes the result of a pass on, by a transfer if its reader's node needs one."""
    if (to := stage.to[is_backward]) is None:
      return None
    if transfer := self._transfers.pop((is_backward, to.stage, m), None):
      self._slots.append(Slot(transfer.source, transfer.send, at_ms, at_ms))
      self._links[_link_of(transfer)].append(transfer)
      to.received[is_backward][m] = transfer
      at_ms += self._costs.time_ms(transfer)
    to.at_ms[is_backward].setdefault(m, at_ms)
    return to


def _link_of(transfer: Transfer) -> Hashable:
  return transfer.kind, transfer.stage, transfer.source, transfer.destination
