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

from bamboo_jax import base
from bamboo_jax.schedule import (
    costs as costs_lib,
    holdings as holdings_lib,
    instruction as instruction_lib,
    lines as lines_lib,
    timeline as timeline_lib,
)

Op = instruction_lib.Op
Transfer = instruction_lib.Transfer


_OPS = (Op.FORWARD, Op.BACKWARD)
# A pass of a line: whether it is a backward pass, stage, microbatch.
_Pass = tuple[bool, int, int]


@dataclasses.dataclass(slots=True, eq=False)
class _Stage:
  """What the owner of a stage of a line owes.

  Pairs are of its forward and its backward passes.

  Attributes:
    left: Microbatches of owed passes, the next one last.
    pending: The microbatches of owed backward passes.
    kept: Microbatches whose residuals the node keeps; of all lines of a
      pipeline.
    most: Bound on `kept`; None: no bound.
  """

  line: lines_lib.Line
  stage: base.StageId
  left: tuple[list[int], list[int]]
  pending: set[int]
  kept: set[int]
  most: int | None

  def choices(self) -> Iterator[_Pass]:
    """Yields the passes that may run once their input is there."""
    forwards, backwards = self.left
    if forwards:
      m = forwards[-1]
      # A pass that is run for its output alone leaves no residuals, and the
      # next backward pass must not wait.
      is_exempt = m not in self.pending or m == backwards[-1]
      if self.most is None or len(self.kept) < self.most or is_exempt:
        yield False, self.stage, m
    if backwards and (self.most is not None or not forwards) and backwards[-1] in self.kept:
      yield True, self.stage, backwards[-1]


# Start, ms; whether it is a backward pass; microbatch; -stage; node; stage.
_Key = tuple[float, bool, int, int, base.NodeId, _Stage]


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
  hold = lambda node: (holdings or {}).get(node, holdings_lib.NOTHING)
  stages: dict[base.NodeId, list[_Stage]] = {}
  slots = list[timeline_lib.Slot]()
  # By the pass that reads a value: its arrival, there or in flight; its transfer, while
  # it is not sent; and its channel, while it is not received.
  at_ms: dict[_Pass, float] = {}
  owed_transfers: dict[_Pass, Transfer] = {}
  sent: dict[_Pass, collections.deque[tuple[_Pass, Transfer]]] = {}
  links = collections.defaultdict[Hashable, collections.deque[tuple[_Pass, Transfer]]](
      collections.deque
  )
  kept_by = collections.defaultdict[Hashable, set[int]](set)  # Pipeline, stage and node.

  def deliver(reader: _Pass, ms: float) -> None:
    """Passes a value on that is made at `ms`, by a transfer if its reader's node needs one."""
    if transfer := owed_transfers.pop(reader, None):
      slots.append(timeline_lib.Slot(transfer.source, transfer.send, ms, ms))
      sent[reader] = link = links[transfer.channel]
      link.append((reader, transfer))
      ms += costs.time_ms(transfer)
    at_ms.setdefault(reader, ms)

  for line in lines:
    owed = lines_lib.find_owed(line, holdings or {})
    for s, node in base.by_stage(line.owners):
      held, forwards, backwards = hold(node), owed.forwards[s], owed.backwards[s]
      kept = kept_by[line.pipeline, s, node]
      kept |= {m for m in backwards if (s, m) in held.residuals}
      most = None if line.in_flight is None else line.in_flight[s]
      left = forwards[::-1], backwards[::-1]
      stages.setdefault(node, []).append(_Stage(line, s, left, {*backwards}, kept, most))
      is_last = s + 1 == len(line.owners)
      for m in forwards:
        if not s or (s - 1, m) in held.activations:
          at_ms[False, s, m] = 0.0
      for m in backwards:
        if is_last or (s, m) in held.gradients:
          at_ms[True, s, m] = 0.0
    for transfer in owed.transfers:
      is_grad = transfer.kind == "gradients"
      reader = is_grad, transfer.stage + (not is_grad), transfer.microbatch
      owed_transfers[reader] = transfer
      if transfer.item in getattr(hold(transfer.source), transfer.kind):
        deliver(reader, 0.0)

  free_ms = dict.fromkeys(sorted(stages), 0.0)
  # The best choice of each node; an entry that has been replaced by a later
  # one for its node is stale.
  heap: list[_Key] = []
  latest: dict[base.NodeId, _Key | None] = {}

  def update(node: base.NodeId) -> None:
    best, now_ms = None, free_ms[node]
    for one in stages[node]:
      for is_backward, s, m in one.choices():
        if (ms := at_ms.get((is_backward, s, m))) is not None:
          key = (max(ms, now_ms), is_backward, m, -s, node, one)
          best = key if best is None else min(best, key)
    latest[node] = best
    if best is not None:
      heapq.heappush(heap, best)

  for node in stages:
    update(node)
  while heap:
    entry = start_ms, is_backward, m, _, node, one = heapq.heappop(heap)
    if latest[node] is not entry:
      continue
    # All that was sent before its input on the same channel is received before, too.
    done = is_backward, one.stage, m
    while done in sent:
      first, transfer = sent[done].popleft()
      del sent[first]
      slots.append(timeline_lib.Slot(node, transfer.receive, start_ms, start_ms))
    i = instruction_lib.Instruction(one.stage, _OPS[is_backward], m)
    end_ms = free_ms[node] = start_ms + costs.time_ms(i)
    slots.append(timeline_lib.Slot(node, i, start_ms, end_ms))
    one.left[is_backward].pop()
    if is_backward:
      one.pending.discard(m)
      one.kept.discard(m)
    elif m in one.pending:
      one.kept.add(m)
    # Its result goes to the next stage or to the one before, if there is one.
    stage, to = one.stage + (-1 if is_backward else 1), node
    if 0 <= stage < len(one.line.owners):
      deliver((is_backward, stage, m), end_ms)
      to = one.line.owners[stage]
    for changed in {node, to}:
      update(changed)
  owing = [one for own in stages.values() for one in own if any(one.left)]
  assert not owing, f"stuck: {owing}"
  return timeline_lib.Timeline.of(slots, free_ms)
