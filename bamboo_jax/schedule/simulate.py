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
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
import dataclasses
import heapq
import itertools

from bamboo_jax import base
from bamboo_jax.schedule import (
    costs as costs_lib,
    holdings as holdings_lib,
    instruction as instruction_lib,
    lines as lines_lib,
    owed as owed_lib,
    rule as rule_lib,
    timeline as timeline_lib,
)

Instruction = instruction_lib.Instruction
Op = instruction_lib.Op
Slot = timeline_lib.Slot
Timeline = timeline_lib.Timeline


def simulate(
    lines: Sequence[lines_lib.Line],
    *,
    costs: costs_lib.StageCosts,
    holdings: lines_lib.Holdings | None = None,
) -> Timeline:
  """Returns the rows that finish the step of all lines, with their times.

  Args:
    holdings: Data that each node holds now; a missing node holds nothing.

  Raises:
    ValueError: A line does not have an owner for each stage.
    base.InfeasibleError: The step cannot be finished from these holdings.
  """
  return _Simulation(lines, costs, holdings or {}).run()


@dataclasses.dataclass(slots=True, eq=False)
class _Stage:
  """What the owner of a stage of a line owes and has.

  Attributes:
    forwards: Microbatches of owed forward passes, the next one last.
    backwards: Likewise.
    pending: The microbatches of `backwards`.
    kept: Microbatches whose residuals the node keeps; of all lines of a
      pipeline.
    most: Bound on `kept`.
    inputs: Arrival of inputs that are there or in flight, by microbatch.
    gradients: Arrival of the gradients of outputs.
    received: Transfer of the input of a pass, by operation and microbatch.
  """

  stage: base.StageId
  node: base.NodeId
  forwards: list[int]
  backwards: list[int]
  pending: set[int]
  kept: set[int]
  most: int | None
  before: "_Stage | None"
  after: "_Stage | None" = None
  inputs: dict[int, float] = dataclasses.field(default_factory=dict)
  gradients: dict[int, float] = dataclasses.field(default_factory=dict)
  received: dict[tuple[Op, int], instruction_lib.Transfer] = dataclasses.field(default_factory=dict)

  def choices(self) -> Iterator[tuple[float, int, Op]]:
    """Yields the passes that may run: arrival of their input, microbatch, operation."""
    if self.forwards:
      m = self.forwards[-1]
      at_ms = self.inputs.get(m)
      # A pass that is run for its output alone leaves no residuals, and the
      # next backward pass must not wait.
      if at_ms is not None and (
          self.most is None
          or len(self.kept) < self.most
          or m not in self.pending
          or m == self.backwards[-1]
      ):
        yield at_ms, m, Op.FORWARD
    if self.backwards and (self.most is not None or not self.forwards):
      m = self.backwards[-1]
      at_ms = self.gradients.get(m)
      if at_ms is not None and m in self.kept:
        yield at_ms, m, Op.BACKWARD


# Start, ms; whether it is a backward pass; microbatch; -stage; node; stage.
_Key = tuple[float, bool, int, int, base.NodeId, _Stage]


class _Simulation:

  def __init__(
      self,
      lines: Sequence[lines_lib.Line],
      costs: costs_lib.StageCosts,
      holdings: lines_lib.Holdings,
  ) -> None:
    self._costs = costs
    self._stages: dict[base.NodeId, list[_Stage]] = {}
    self._slots: list[Slot] = []
    self._transfers: dict[tuple[str, int, int], instruction_lib.Transfer] = {}
    # Sent and not received, by link: kind, stage, and both nodes.
    self._links: dict[Hashable, collections.deque[instruction_lib.Transfer]] = {}
    kept: dict[tuple[int, int, base.NodeId], set[int]] = {}
    for line in lines:
      self._add(line, holdings, kept)
    self._free_ms = dict.fromkeys(sorted(self._stages), 0.0)

  def _add(
      self,
      line: lines_lib.Line,
      holdings: lines_lib.Holdings,
      shared: dict[tuple[int, int, base.NodeId], set[int]],
  ) -> None:
    """Adds the stages of a line, and what is there and sent at the start."""
    if len(line.owners) != self._costs.num_stages:
      raise ValueError(
          f"owners must name a node for each of the {self._costs.num_stages} stages of costs, got "
          f"{list(line.owners)}."
      )
    owed = owed_lib.find_owed(line, holdings)
    stages: list[_Stage] = []
    for s, node in base.by_stage(line.owners):
      held = holdings.get(node, holdings_lib.NOTHING)
      kept = shared.setdefault((line.pipeline, s, node), set())
      kept |= {m for m in owed.backwards[s] if (s, m) in held.residuals}
      one = _Stage(
          stage=s,
          node=node,
          forwards=owed.forwards[s][::-1],
          backwards=owed.backwards[s][::-1],
          pending={*owed.backwards[s]},
          kept=kept,
          most=None if line.in_flight is None else line.in_flight[s],
          before=stages[-1] if stages else None,
      )
      is_last = s + 1 == len(line.owners)
      for m in one.forwards:
        if not s or (s - 1, m) in held.activations:
          one.inputs[m] = 0.0
      for m in one.backwards:
        if is_last or (s, m) in held.gradients:
          one.gradients[m] = 0.0
      if one.before:
        one.before.after = one
      stages.append(one)
      self._stages.setdefault(node, []).append(one)
    for t in owed.transfers:
      self._transfers[t.kind, t.stage, t.microbatch] = t
      held = holdings.get(t.source, holdings_lib.NOTHING)
      if (t.stage, t.microbatch) in (held.activations if t.kind == "A" else held.gradients):
        self._deliver(t.kind, stages[t.stage + (t.kind == "A")], t.stage, t.microbatch, 0.0)

  def run(self) -> Timeline:
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
      other = self._run(stage, Op.BACKWARD if is_backward else Op.FORWARD, m, start_ms)
      update(node)
      if other is not None and other.node != node:
        update(other.node)
    assert not any(s.forwards or s.backwards for own in self._stages.values() for s in own), "stuck"
    return _finish(self._slots, self._free_ms)

  def _find_best(self, node: base.NodeId) -> _Key | None:
    best, free_ms = None, self._free_ms[node]
    for stage in self._stages[node]:
      for at_ms, m, op in stage.choices():
        key = (max(at_ms, free_ms), op is Op.BACKWARD, m, -stage.stage, node, stage)
        if best is None or key < best:
          best = key
    return best

  def _run(self, stage: _Stage, op: Op, m: int, start_ms: float) -> _Stage | None:
    """Runs a pass and delivers its result; returns the stage that gets it."""
    s, node = stage.stage, stage.node
    if transfer := stage.received.pop((op, m), None):
      self._receive(transfer, start_ms)
    i = Instruction(s, op, m)
    end_ms = self._free_ms[node] = start_ms + self._costs.pass_ms(i)
    self._slots.append(Slot(node, i, start_ms, end_ms))
    if op is Op.FORWARD:
      stage.forwards.pop()
      if m in stage.pending:
        stage.kept.add(m)
      return self._deliver("A", stage.after, s, m, end_ms)
    stage.backwards.pop()
    stage.pending.discard(m)
    stage.kept.discard(m)
    return self._deliver("G", stage.before, base.StageId(s - 1), m, end_ms)

  def _receive(self, transfer: instruction_lib.Transfer, at_ms: float) -> None:
    """Receives a value, and all that were sent before it on its link."""
    link = self._links[_link_of(transfer)]
    if transfer in link:
      for _ in range(link.index(transfer) + 1):
        one = link.popleft()
        self._slots.append(Slot(one.destination, one.receive, at_ms, at_ms))

  def _deliver(
      self, kind: str, to: _Stage | None, s: base.StageId, m: int, at_ms: float
  ) -> _Stage | None:
    """Passes a value on to a stage, by a transfer if its node needs one."""
    if to is None:
      return None
    op, arrivals = (Op.FORWARD, to.inputs) if kind == "A" else (Op.BACKWARD, to.gradients)
    if transfer := self._transfers.pop((kind, s, m), None):
      self._slots.append(Slot(transfer.source, transfer.send, at_ms, at_ms))
      self._links.setdefault(_link_of(transfer), collections.deque()).append(transfer)
      to.received[op, m] = transfer
      at_ms += self._costs.transfer_ms[s]
    arrivals.setdefault(m, at_ms)
    return to


def _link_of(transfer: instruction_lib.Transfer) -> Hashable:
  return transfer.kind, transfer.stage, transfer.source, transfer.destination


def replay(
    rows: Mapping[base.NodeId, Sequence[Instruction]],
    ms: Callable[[Instruction], float],
    rules: Mapping[base.NodeId, rule_lib.WaitRule] | None = None,
) -> Timeline:
  """Returns the times of rows, whose waits are filled by `rules` if given.

  Args:
    ms: Returns the time of a pass, or from a send to its receive.
  """
  left = {node: iter(row) for node, row in rows.items()}
  held = {node: holdings_lib.HoldingsLedger() for node in rows}
  done: dict[base.NodeId, set[Instruction]] = {node: set() for node in rows}
  free_ms, slots = dict.fromkeys(rows, 0.0), []
  sent_ms: dict[instruction_lib.Transfer, float] = {}
  waiting: dict[instruction_lib.Transfer, tuple[base.NodeId, Instruction]] = {}

  def run(node: base.NodeId, i: Instruction, pass_ms: float) -> None:
    start_ms, free_ms[node] = free_ms[node], free_ms[node] + pass_ms
    slots.append(Slot(node, i, start_ms, free_ms[node]))
    held[node].add(i)

  def fill(node: base.NodeId, receive: Instruction | None, until_ms: float) -> None:
    rule = rules.get(node) if rules else None
    while rule and free_ms[node] < until_ms:
      i = rule.find_next(done[node], held[node].activations)
      if i is None or not rule.fits(i, receive, now_ms=free_ms[node]):
        return
      done[node].add(i)
      run(node, i, ms(i))

  moving: list[tuple[base.NodeId, Instruction | None]] = [(node, None) for node in rows]
  while moving:
    node, first = moving.pop()
    for i in itertools.chain([first] if first else [], left[node]):
      if i.is_receive:
        transfer = i.transfer(node)
        if transfer not in sent_ms:
          waiting[transfer] = node, i
          break
        at_ms = sent_ms[transfer] + ms(i)
        fill(node, i, at_ms)
        free_ms[node] = max(free_ms[node], at_ms)
      run(node, i, 0.0 if i.is_transfer else ms(i))
      if i.is_send:
        sent_ms[i.transfer(node)] = free_ms[node]
        if i.transfer(node) in waiting:
          moving.append(waiting.pop(i.transfer(node)))
  assert not waiting, waiting
  span_ms = max(free_ms.values(), default=0.0)
  for node in rows:
    fill(node, None, span_ms)
  return _finish(slots, free_ms)


def _finish(slots: list[Slot], free_ms: Mapping[base.NodeId, float]) -> Timeline:
  # Stable: sends precede their receives in `slots`, and times follow it.
  slots.sort(key=lambda slot: slot.start_ms)
  return Timeline(tuple(slots), tuple(free_ms), max(free_ms.values(), default=0.0))
