"""The schedule of a step, or of its rest, lowered to the ticks of a program.

A program moves in lockstep: in a tick each node runs at most one forward and one
backward pass, forward first, then all exchange results. The passes come in the
order of `schedule.simulate`, each in the first tick that has its input. So with
P stages F(m) of stage s is in tick m + s and B(m) in tick m + 2 (P - 1) - s, and
a step takes as long as with 1F1B, with 2 (P - s) - 1 microbatches in flight on
stage s.

A tick lasts as long as the passes of its busiest node. In the rest of it other
nodes run redundant forward passes, early microbatches first.

Microbatches are counted from 0 in each pipeline. In a buffer, the slot of a
microbatch is its number modulo K, where K is the most that is in flight at once;
each stage of a node has K slots. Nodes form a ring: each sends activations to
the next and gradients to the one before.
"""

import collections
from collections.abc import Iterable, Iterator, Sequence
import dataclasses
import functools
import itertools
from typing import NamedTuple

import numpy as np

from bamboo_jax import base
from bamboo_jax.schedule import (
    costs as costs_lib,
    holdings as holdings_lib,
    instruction as instruction_lib,
    timeline as timeline_lib,
)

Instruction = instruction_lib.Instruction
Op = instruction_lib.Op
Key = holdings_lib.Item  # Stage and microbatch.
Array = tuple[str, Key]  # One of `KINDS`, and whose output, gradient or residuals it is.
# Passes of a node in a tick: a forward pass, redundant ones, a backward pass.
Tick = tuple[Instruction, ...]

KINDS = ("activations", "gradients", "residuals")
MAX_REDUNDANT = 3  # In a tick.
NUM_FORWARDS = 1 + MAX_REDUNDANT
_ORDER = (Op.FORWARD, Op.REDUNDANT_FORWARD, Op.BACKWARD)  # In a tick.
_ROUNDING_MS = 1e-6  # Of sums of durations.


class Pass(NamedTuple):
  """One pass of a node in a tick, as a program reads it; -1 means none.

  Attributes:
    microbatch: Its position among those of the pipeline.
    stage: Stage whose parameters it uses.
    hold: Index of the stage among those that the node holds, see `stages_of`.
    inputs: Slot of the activation that a forward pass reads, none on stage 0;
      or of the gradient that a backward pass reads, none on the last stage.
    residual: Slot of residuals, which a forward pass fills and a backward pass
      reads.
    output: Slot of activations or gradients for the result, if the node itself
      reads it.
    host: Slot in host memory to which a redundant forward pass writes its
      residuals, or from which a backward pass reads them.
  """

  microbatch: int
  stage: int
  hold: int
  inputs: int
  residual: int
  output: int
  host: int


# Of a tick of a node: forward passes, the backward pass, and what arrives.
SHAPE = (NUM_FORWARDS + 2, len(Pass._fields))


class Sizes(NamedTuple):
  """The sizes of a program: of its segments, and of the buffers of a node.

  Attributes:
    num_ticks: Ticks of a segment.
    num_microbatches: Microbatches of a pipeline.
    activations: Slots for a stage, as of the following two.
    spare: Slots of residuals that leave for the host at the end of a tick.
    offloads: Redundant forward passes of a segment, at most.
    fetches: Residuals from host memory; 0 at the start of a step.
    owned: Stages that a node owns, at most.
    keeps: Whether sent values are returned too, in host memory, and nothing is
      donated.
  """

  num_ticks: int
  num_microbatches: int
  activations: int
  gradients: int
  residuals: int
  spare: int
  offloads: int
  fetches: int
  owned: int
  keeps: bool

  @property
  def held(self) -> int:
    """Stages that a node owns or has a replica of, at most."""
    return max(self.owned, 1 + self.keeps)

  @property
  def buffers(self) -> tuple[int, int, int]:
    """Slots of the buffers of a node, of each of `KINDS`."""
    # Inputs of redundant passes are those of the replica.
    num_reading = self.held if self.offloads else self.owned
    residuals = self.owned * self.residuals + self.spare
    return num_reading * self.activations, self.owned * self.gradients, residuals


class Life(NamedTuple):
  """Tick that makes an array, and those from which and up to which it has its slot.

  One that another node makes arrives at the end of that tick, before it has its slot.
  """

  made: int
  first: int
  last: int


def stages_of(owners: Sequence[int], node: int) -> tuple[base.StageId, ...]:
  """Returns the stages that a node owns, along the ring, then its replica's."""
  count = len(owners)
  own = [s for s, owner in base.by_stage(owners) if owner == node]
  if len(own) == 1:
    return (own[0], base.StageId((own[0] + 1) % count))
  begins = [(s - 1) % count not in own for s in own]
  first = begins.index(True) if any(begins) else 0
  return (*own[first:], *own[:first])


def is_ring(owners: Sequence[int]) -> bool:
  """Returns whether each node sends activations only to the next one."""
  nodes = list(dict.fromkeys(owners))
  places = [nodes.index(node) for node in owners]
  return all(
      (to - source) % len(nodes) in (0, 1 % len(nodes)) for source, to in itertools.pairwise(places)
  )


@dataclasses.dataclass(frozen=True)
class TickTable:
  """The ticks of all nodes of a pipeline.

  Attributes:
    owners: The node of each stage; nodes are numbered along the ring.
    ticks: By tick, then node.
    moves: Transfers before the first tick, as the schedule has them.
  """

  owners: tuple[int, ...]
  num_microbatches: int
  ticks: tuple[tuple[Tick, ...], ...]
  moves: tuple[tuple[base.NodeId, Instruction], ...] = ()

  @property
  def num_nodes(self) -> int:
    return 1 + max(self.owners)

  @property
  def num_stages(self) -> int:
    return len(self.owners)

  @functools.cached_property
  def stages(self) -> list[tuple[base.StageId, ...]]:
    """The stages whose weights each node holds, see `stages_of`."""
    return [stages_of(self.owners, n) for n in range(self.num_nodes)]

  @functools.cached_property
  def lives(self) -> list[dict[Array, Life]]:
    """The life of each array that a node reads, by node.

    One that the node has at the start is made in tick -1. Of these, residuals are in
    host memory, and have a slot only while they are read.
    """
    found = [dict[Array, Life]() for _ in self.stages]
    made: dict[Array, tuple[int, int]] = {}  # Tick and node.
    for t, row in enumerate(self.ticks):
      for (n, own), lives in zip(enumerate(row), found, strict=True):
        for i in own:
          for array in filter(self._is_passed, reads(i)):
            at, maker = made.get(array, (-1, n))
            first = at + (maker != n)
            if at < 0 or first > t:  # It was there before.
              at, first = -1, t if array[0] == "residuals" else 0
            lives[array] = Life(at, first, t)
          for array in makes(i):
            made[array] = t, n
            if array[0] == "residuals":  # Written even if never read.
              lives.setdefault(array, Life(t, t, t))
    return found

  def least_sizes(self, num_ticks: int, *, keeps: bool) -> Sizes:
    """Returns the least sizes of a program that runs the ticks."""
    held = collections.defaultdict[tuple[str, int, int, int], set[int]](set)
    for n, lives in enumerate(self.lives):
      for (kind, (stage, m)), life in lives.items():
        for t in range(life.first, life.last + 1):
          held[kind, n, stage, t].add(m)
    slots = dict.fromkeys(KINDS, 1)
    for (kind, *_), numbers in held.items():
      slots[kind] = max(slots[kind], 1 + max(numbers) - min(numbers))
    nodes = range(self.num_nodes)
    counts = np.array([[count_redundant(own) for own in row] for row in self.ticks])
    return Sizes(
        num_ticks,
        self.num_microbatches,
        **slots,
        spare=int(counts.max()),
        offloads=int(np.add.reduceat(counts, range(0, len(counts), num_ticks)).max()),
        fetches=max(len(self.fetches(n)) for n in nodes),
        owned=max(map(self.owners.count, nodes)),
        keeps=keeps,
    )

  def find_slot(self, node: int, array: Array, sizes: Sizes) -> int:
    """Returns the slot of an array in its buffer."""
    kind, (stage, m) = array
    reader, count = base.StageId(stage + (kind == "activations")), getattr(sizes, kind)
    return self.stages[node].index(reader) * count + m % count

  def as_array(self, sizes: Sizes) -> np.ndarray:
    """Returns the ticks, int32[nodes, segments, ticks, *SHAPE].

    A tick has the fields of all forward passes and of the backward pass, and the
    slots of the two arrivals. Ticks beyond the last have no passes.
    Redundant forward passes of a segment write their residuals to slots in host
    memory in turn. In the buffer of residuals the spare slots come last.
    """
    size = sizes.num_ticks
    count = -(-len(self.ticks) // size)
    found = np.full((self.num_nodes, count * size, *SHAPE), -1, np.int32)
    for n, lives in enumerate(self.lives):
      fetches, find = self.fetches(n), functools.partial(self.find_slot, n, sizes=sizes)
      for t, row in enumerate(self.ticks):
        if t % size == 0:
          offloads = itertools.count()
        spare = sizes.owned * sizes.residuals
        for place, i in enumerate(row[n]):
          source = reads(i)[-1]
          outputs = [find(a) for a in makes(i)[:1] if a in lives and lives[a].last >= t]
          residual, host = find(("residuals", i.item)), -1
          if i.op is Op.REDUNDANT_FORWARD:
            residual, host, spare = spare, next(offloads), spare + 1
          elif i.op is Op.BACKWARD:
            place, host = NUM_FORWARDS, fetches.get(i.item, -1)
          found[n, t, place] = Pass(
              microbatch=i.microbatch,
              stage=i.stage,
              hold=self.stages[n].index(i.stage),
              inputs=find(source) if source in lives else -1,
              residual=residual,
              output=next(iter(outputs), -1),
              host=host,
          )
      for array, life in lives.items():
        if 0 <= life.made < life.first:
          found[n, life.made, -1, KINDS.index(array[0])] = find(array)
    return found.reshape(self.num_nodes, count, size, *SHAPE)

  def fetches(self, node: int) -> dict[Key, int]:
    """Returns the slots of the residuals that a node has in host memory at the start."""
    lives = self.lives[node].items()
    keys = sorted(key for (kind, key), life in lives if kind == "residuals" and life.made < 0)
    return {key: slot for slot, key in enumerate(keys)}

  def find_contents(
      self, node: int, num_ticks: int, sizes: Sizes
  ) -> Iterator[tuple[Array, int | None, int]]:
    """Yields where the arrays of a node are after `num_ticks` ticks.

    Each with the segment that has left it in host memory, None if it is on the device,
    and its slot there.
    """
    for array, life in self.lives[node].items():
      is_here = life.made >= 0 or array[0] != "residuals"
      if is_here and life.made < num_ticks <= life.last:
        yield array, None, self.find_slot(node, array, sizes)
    for t, row in enumerate(self.ticks[:num_ticks]):
      segment, at = divmod(t, sizes.num_ticks)
      if not at:
        offloads = itertools.count()
      for i in row[node]:
        if i.op is Op.REDUNDANT_FORWARD:
          yield ("residuals", i.item), segment, next(offloads)
        else:
          yield from ((array, segment, at) for array in makes(i)[:1] if self._is_passed(array))

  def _is_passed(self, array: Array) -> bool:
    """Returns whether an array is not input or output of the model, which nobody passes on."""
    kind, (stage, _) = array
    return kind == "residuals" or 0 <= stage < self.num_stages - 1


def reads(i: Instruction) -> list[Array]:
  """Returns what a pass reads, also if that is the model's input or the loss."""
  if i.op is Op.BACKWARD:
    return [("residuals", i.item), ("gradients", i.item)]
  return [("activations", holdings_lib.input_of(i.item))]


def makes(i: Instruction) -> list[Array]:
  """Returns what a pass leaves on its device: first what it may send."""
  match i.op:
    case Op.FORWARD:
      return [("activations", i.item), ("residuals", i.item)]
    case Op.BACKWARD:
      return [("gradients", holdings_lib.input_of(i.item))]
  return []  # Residuals of redundant passes leave for the host.


def count_redundant(tick: Tick) -> int:
  """Returns the number of redundant forward passes."""
  return sum(i.op is Op.REDUNDANT_FORWARD for i in tick)


def _add(tick: Tick, i: Instruction) -> Tick:
  """Returns a tick with another pass."""
  return tuple(sorted((*tick, i), key=lambda i: _ORDER.index(i.op)))


def lower(
    slots: Iterable[timeline_lib.Slot],
    *,
    owners: Sequence[base.NodeId],
    microbatches: Sequence[int],
    in_flight: int | None = None,
) -> TickTable:
  """Returns the ticks that run the passes of a schedule.

  What a pass reads, and no pass before it has made, is there at the start.
  Redundant forward passes are left out, as ticks have other waits than rows.

  Args:
    slots: Of a timeline.
    owners: The node of each stage; a node's stages are contiguous, cyclically.
    microbatches: Microbatches of the pipeline, by position.
    in_flight: K: a forward pass waits for the backward pass of the microbatch that
      is K earlier, whose slot it takes; None: it does not wait.
  """
  assert is_ring(owners), owners
  nodes, position = list(dict.fromkeys(owners)), {m: i for i, m in enumerate(microbatches)}
  ticks: list[list[Tick]] = []
  made: dict[Array, int] = {}  # Tick of the pass that makes it.
  free = collections.Counter[tuple[int, Op]]()
  moves = list[tuple[base.NodeId, Instruction]]()
  for node, given, *_ in slots:
    if given.microbatch not in position or given.op is Op.REDUNDANT_FORWARD:
      continue
    n, i = nodes.index(node), given._replace(microbatch=position[given.microbatch])
    if i.is_transfer:
      move = given.transfer(node)
      if i.is_send and (move.kind, i.item) not in made:
        moves += [(move.source, move.send), (move.destination, move.receive)]
      continue
    inputs = (array for array in reads(i) if array in made)
    at = max([free[n, i.op], *(made[array] + (array[0] != "residuals") for array in inputs)])
    if in_flight is not None and i.op is Op.FORWARD:
      before = holdings_lib.input_of((i.stage, i.microbatch - in_flight))
      at = max(at, 1 + made.get(("gradients", before), -1))
    free[n, i.op] = at + 1
    ticks += ([()] * len(nodes) for _ in range(len(ticks), at + 1))
    ticks[at][n] = _add(ticks[at][n], i)
    made |= dict.fromkeys(makes(i), at)
  return TickTable(
      owners=tuple(map(nodes.index, owners)),
      num_microbatches=len(microbatches),
      ticks=tuple(map(tuple, ticks)),
      moves=tuple(moves),
  )


def fill(table: TickTable, *, costs: costs_lib.StageCosts, budget: float) -> TickTable:
  """Returns a table of a whole step with redundant forward passes.

  First they take the time that nodes have left in their ticks. Others may
  lengthen ticks, early ones first, until the step is longer by the fraction
  `budget`; with `math.inf` all passes are run.
  """
  ticks = [[*row] for row in table.ticks]
  busy_ms = lambda tick: sum(map(costs.time_ms, tick))
  lasts_ms = [max(map(busy_ms, row)) for row in ticks]
  left_ms = budget * sum(lasts_ms)
  made = {
      i.item: t
      for t, row in enumerate(table.ticks)
      for own in row
      for i in own
      if i.op is Op.FORWARD
  }
  owed = [
      [Instruction(replica, Op.REDUNDANT_FORWARD, m) for m in range(table.num_microbatches)]
      for _, replica in table.stages
  ]
  for is_free in (True, False):
    for (t, row), (n, left) in itertools.product(enumerate(ticks), enumerate(owed)):
      for i in [i for i in left if made.get(holdings_lib.input_of(i.item), -1) <= t]:
        room_ms = lasts_ms[t] - busy_ms(row[n]) - costs.time_ms(i)
        fits = room_ms + (0.0 if is_free else left_ms) >= -_ROUNDING_MS
        if count_redundant(row[n]) == MAX_REDUNDANT or not fits:
          break
        left.remove(i)
        row[n] = _add(row[n], i)
        longer_ms = max(0.0, -room_ms)
        left_ms, lasts_ms[t] = left_ms - longer_ms, lasts_ms[t] + longer_ms
  return dataclasses.replace(table, ticks=tuple(map(tuple, ticks)))
