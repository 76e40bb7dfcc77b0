"""The schedule of a step, or of its rest, lowered to the ticks of a program.

A program moves in lockstep: in a tick each node runs at most one forward and one
backward pass, forward first, then all exchange results. The passes come in the
order of `schedule.simulate`, each in the first tick that has its input. So with
P stages F(m) of stage s is in tick m + s and B(m) in tick m + 2 (P - 1) - s, and
a step takes as long as with 1F1B, with 2 (P - s) - 1 microbatches in flight on
stage s.

A tick lasts as long as the passes of its busiest node. In the rest of it other
nodes run redundant forward passes, by the `rule` of rows: the end of a tick is
what a row waits for.

Microbatches are counted from 0 in each pipeline. In a buffer, the slot of a
microbatch is its number modulo K, where K is the most that is in flight at once;
each stage of a node has K slots. Nodes form a ring: each sends activations to
the next and gradients to the one before.
"""

import collections
from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import functools
import itertools
from typing import Any, NamedTuple

import numpy as np

from bamboo_jax import base
from bamboo_jax.schedule import (
    costs as costs_lib,
    holdings as holdings_lib,
    instruction as instruction_lib,
    rule as rule_lib,
)

Instruction = instruction_lib.Instruction
Op = instruction_lib.Op
Key = holdings_lib.Item  # Stage and microbatch.
Slots = Mapping[str, int]
_Array = tuple[str, Key]  # Kind and key.

MAX_REDUNDANT = 3  # In a tick.
NUM_FORWARDS = 1 + MAX_REDUNDANT


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

  microbatch: int = -1
  stage: int = -1
  hold: int = -1
  inputs: int = -1
  residual: int = -1
  output: int = -1
  host: int = -1


NUM_FIELDS = (NUM_FORWARDS + 1) * len(Pass()) + 2


class Tick(NamedTuple):
  """The passes of one node in one tick, in order, and what arrives at its end.

  Attributes:
    redundant: At most `MAX_REDUNDANT` forward passes of the node's replica.
    inputs: The activation sent by the previous node, if it is needed.
    grad: The gradient sent by the next node, likewise.
  """

  forward: Key | None = None
  redundant: tuple[Key, ...] = ()
  backward: Key | None = None
  inputs: Key | None = None
  grad: Key | None = None

  @property
  def passes(self) -> list[Instruction]:
    """Its passes as instructions."""
    ran = [(Op.FORWARD, self.forward), *((Op.REDUNDANT_FORWARD, key) for key in self.redundant)]
    ran.append((Op.BACKWARD, self.backward))
    return [Instruction(key[0], op, key[1]) for op, key in ran if key]


class Contents(NamedTuple):
  """The arrays of a node between two ticks.

  Attributes:
    slots: Slot of each array in the buffers of activations, gradients and
      residuals, by kind and key.
    sent: Tick that computed an output or the gradient of an input, likewise.
    offloaded: Tick that moved residuals to host memory.
    accumulated: Backward passes whose gradients are in the sums.
  """

  slots: dict[_Array, int]
  sent: dict[_Array, int]
  offloaded: dict[Key, int]
  accumulated: set[Key]


class _Life(NamedTuple):
  """Tick that makes an array, and those from which and up to which it has its slot."""

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
    start: What each node needs before the first tick: activations and gradients
      on its device, residuals in host memory; and what is in its sums.
    moves: Transfers before the first tick, as the schedule has them.
  """

  owners: tuple[int, ...]
  num_microbatches: int
  ticks: tuple[tuple[Tick, ...], ...]
  start: tuple[holdings_lib.Holdings, ...]
  moves: tuple[tuple[base.NodeId, Instruction], ...] = ()

  @property
  def num_passes(self) -> int:
    """Number of passes that owners run."""
    own = (node for row in self.ticks for node in row)
    return sum((node.forward is not None) + (node.backward is not None) for node in own)

  @property
  def num_nodes(self) -> int:
    """Number of nodes."""
    return 1 + max(self.owners)

  @property
  def num_stages(self) -> int:
    """Number of stages."""
    return len(self.owners)

  def stages_of(self, node: int) -> tuple[base.StageId, ...]:
    """Returns the stages whose weights a node holds, see `stages_of`."""
    return self._stages[node]

  @functools.cached_property
  def num_slots(self) -> dict[str, int]:
    """Slots of "activations", "grads" and "residuals" of a stage, at least 1.

    Also those of residuals that leave for the host at the end of a tick, "spare".
    """
    least: dict[tuple[str, int, int, int], int] = {}
    most = dict(least)
    for n in range(self.num_nodes):
      for (kind, (stage, m)), (_, first, last) in self._lives[n].items():
        for t in range(first, last + 1):
          where = (kind, n, stage, t)
          least[where] = min(m, least.get(where, m))
          most[where] = max(m, most.get(where, m))
    found = dict.fromkeys(("activations", "grads", "residuals"), 1)
    for where, m in most.items():
      found[where[0]] = max(found[where[0]], 1 + m - least[where])
    spare = max((len(own.redundant) for row in self.ticks for own in row), default=0)
    return found | {"spare": spare}

  def find_slot(self, node: int, kind: str, key: Key, slots: Slots) -> int:
    """Returns the slot of an array in a buffer, which has `slots` for a stage."""
    reader = key[0] + (kind == "activations")
    return self._stages[node].index(reader) * slots[kind] + key[1] % slots[kind]

  def as_array(self, first: int, stop: int, slots: Slots, num_owned: int) -> np.ndarray:
    """Returns ticks `first` to `stop - 1`, int32[nodes, ticks, NUM_FIELDS].

    A row has the fields of all forward passes and of the backward pass, then
    the slots of the two arrivals. Ticks beyond the last have no passes.
    Redundant forward passes write their residuals to the slots of `offloads`.
    `num_owned` is the number of stages in the buffer of residuals, behind which
    are the spare slots.
    """
    found = np.full((self.num_nodes, stop - first, NUM_FIELDS), -1, np.int32)
    for n in range(self.num_nodes):
      offloads, fetches = self.offloads(n, first, stop), self.fetches(n)
      slot = functools.partial(self.find_slot, n, slots=slots)
      for t, row in enumerate(self.ticks[first:stop], start=first):
        own, spare = row[n], itertools.count(num_owned * slots["residuals"])
        rows: list[Pass] = []
        for key in (own.forward, *own.redundant):
          if key is None:
            continue
          is_own = key == own.forward
          one = self._pass(
              *(n, t, key, "activations", holdings_lib.input_of(key), key, slots),
              residual=slot("residuals", key) if is_own else next(spare),
          )
          rows.append(one._replace(host=-1 if is_own else offloads[key]))
        rows += [Pass()] * (NUM_FORWARDS - len(rows))
        back = Pass()
        if key := own.backward:
          back = self._pass(
              *(n, t, key, "grads", key, holdings_lib.input_of(key), slots),
              residual=slot("residuals", key),
          )._replace(host=fetches.get(key, -1))
        arriving = (
            -1 if key is None else slot(kind, key)
            for kind, key in (("activations", own.inputs), ("grads", own.grad))
        )
        found[n, t - first] = [*itertools.chain(*rows, back), *arriving]
    return found

  def offloads(self, node: int, first: int, stop: int) -> dict[Key, int]:
    """Returns the slots of residuals that a node moves to host memory.

    In ticks `first` to `stop - 1`, by stage and microbatch.
    """
    keys = (key for row in self.ticks[first:stop] for key in row[node].redundant)
    return {key: slot for slot, key in enumerate(keys)}

  def fetches(self, node: int) -> dict[Key, int]:
    """Returns the slots of the residuals that a node has in host memory at the start."""
    return {key: slot for slot, key in enumerate(sorted(self.start[node].residuals))}

  def find_contents(self, node: int, num_ticks: int, slots: Slots) -> Contents:
    """Returns the arrays of a node after the first `num_ticks` ticks."""
    found = Contents({}, {}, {}, set(self.start[node].accumulated))
    for (kind, key), life in self._lives[node].items():
      if life.made < num_ticks <= life.last:
        found.slots[kind, key] = self.find_slot(node, kind, key, slots)
    for t, row in enumerate(self.ticks[:num_ticks]):
      own = row[node]
      if own.forward:
        found.sent["activations", own.forward] = t
      found.offloaded.update(dict.fromkeys(own.redundant, t))
      if key := own.backward:
        found.accumulated.add(key)
        if key[0]:
          found.sent["grads", holdings_lib.input_of(key)] = t
    return found

  @functools.cached_property
  def _stages(self) -> list[tuple[base.StageId, ...]]:
    return [stages_of(self.owners, n) for n in range(self.num_nodes)]

  @functools.cached_property
  def _lives(self) -> list[dict[_Array, _Life]]:
    """The life of each array that a node reads, by node."""
    found = []
    for n, start in enumerate(self.start):
      begins: dict[_Array, tuple[int, int]] = {}  # As in `_Life`.
      ends: dict[_Array, int] = {}
      begins |= {("activations", key): (-1, 0) for key in start.activations}
      begins |= {("grads", key): (-1, 0) for key in start.gradients}
      for t, row in enumerate(self.ticks):
        own = row[n]
        for key in filter(None, (own.forward, *own.redundant)):
          ends["activations", holdings_lib.input_of(key)] = t
        if own.forward:
          begins.setdefault(("activations", own.forward), (t, t))
          begins["residuals", own.forward] = t, t
          ends["residuals", own.forward] = t
        if key := own.backward:
          begins.setdefault(("residuals", key), (t, t))
          ends["residuals", key] = ends["grads", key] = t
          begins.setdefault(("grads", holdings_lib.input_of(key)), (t, t))
        if own.inputs:
          begins.setdefault(("activations", own.inputs), (t, t + 1))
        if own.grad:
          begins.setdefault(("grads", own.grad), (t, t + 1))
      found.append({what: _Life(*begins[what], t) for what, t in ends.items() if what in begins})
    return found

  def _if_read(self, node: int, tick: int, kind: str, key: Key) -> Key | None:
    """Returns `key` if the node reads what it has made in a tick; else None."""
    life = self._lives[node].get((kind, key))
    return key if life is not None and life.last >= tick else None

  def _pass(
      self,
      node: int,
      tick: int,
      key: Key,
      kind: str,
      read: Key,
      made: Key,
      slots: Slots,
      *,
      residual: int,
  ) -> Pass:
    """Returns a pass that reads and makes arrays of a kind."""
    stage, m = key
    has_inputs = 0 <= read[0] < self.num_stages - 1
    is_read = self._if_read(node, tick, kind, made)
    return Pass(
        microbatch=m,
        stage=stage,
        hold=self._stages[node].index(stage),
        inputs=self.find_slot(node, kind, read, slots) if has_inputs else -1,
        residual=residual,
        output=self.find_slot(node, kind, made, slots) if is_read else -1,
    )


def lower(
    order: Iterable[tuple[base.NodeId, Instruction]],
    *,
    owners: Sequence[base.NodeId],
    microbatches: Sequence[int],
    in_flight: int | None = None,
) -> TickTable:
  """Returns the ticks that run the passes of a schedule.

  What a pass reads, and no pass before it has made, is there at the start.
  Redundant forward passes are left out, as ticks have other waits than rows.

  Args:
    order: Nodes and instructions, see `simulate.simulate`; a send comes before
      its receive.
    owners: The node of each stage; a node's stages are contiguous, cyclically.
    microbatches: Microbatches of the pipeline, by position.
    in_flight: K: a forward pass waits for the backward pass of the microbatch that
      is K earlier, whose slot it takes; None: it does not wait.

  Raises `ValueError` if a node's stages are not contiguous.
  """
  nodes = list(dict.fromkeys(owners))
  if not is_ring(owners):
    raise ValueError(f"Each node of a program sends to the next one only, got owners {[*owners]}.")
  position = {m: i for i, m in enumerate(microbatches)}
  found, moves = _Lowered([*map(nodes.index, owners)], in_flight), []
  moved = set[instruction_lib.Transfer]()
  for node, i in order:
    if i.microbatch not in position:
      continue
    n, key = nodes.index(node), (i.stage, position[i.microbatch])
    match i.op:
      case Op.FORWARD:
        found.add_forward(n, key)
      case Op.BACKWARD:
        found.add_backward(n, key)
      case Op.SEND_ACTIVATION | Op.SEND_GRAD if not found.has_made(i.op, key):
        moved.add(i.transfer(node))
        moves.append((node, i))
      case Op.RECV_ACTIVATION | Op.RECV_GRAD:
        if i.transfer(node) in moved:
          moves.append((node, i))
        else:
          found.receive(n, i.op, key)
  return TickTable(
      owners=tuple(found.owners),
      num_microbatches=len(microbatches),
      ticks=tuple(
          tuple(Tick(**found.ticks.get((t, n), {})) for n in range(len(nodes)))
          for t in range(found.num_ticks)
      ),
      start=tuple(found.start(n, len(microbatches)) for n in range(len(nodes))),
      moves=tuple(moves),
  )


class _Lowered:
  """Passes that have their ticks; nodes are numbered along the ring.

  Attributes:
    ticks: Fields of `Tick`, by tick and node.
    num_ticks: Number of ticks so far.
  """

  def __init__(self, owners: Sequence[int], in_flight: int | None) -> None:
    self.owners, self._in_flight = owners, in_flight
    self.ticks: dict[tuple[int, int], dict[str, Any]] = collections.defaultdict(dict)
    self.num_ticks = 0
    self._free: collections.Counter[tuple[int, Op]] = collections.Counter()
    self._ran: dict[tuple[Op, Key], int] = {}
    # First tick in which a node may read an array from another node.
    self._there: dict[tuple[int, _Array], int] = {}
    self._start: dict[tuple[int, str], set[Key]] = collections.defaultdict(set)

  def has_made(self, op: Op, key: Key) -> bool:
    """Returns whether a pass has made the array of a transfer."""
    return _maker(_kind(op), key) in self._ran

  def receive(self, n: int, op: Op, key: Key) -> None:
    """Lets an array arrive after the pass that makes it."""
    made = self._ran[_maker(_kind(op), key)]
    self.ticks[made, n]["inputs" if op is Op.RECV_ACTIVATION else "grad"] = key
    self._there[n, (_kind(op), key)] = made + 1

  def add_forward(self, n: int, key: Key) -> None:
    (stage, m), at = key, 0
    if stage:
      at = self._find_input(n, "activations", holdings_lib.input_of(key))
    if self._in_flight is not None:
      at = max(at, 1 + self._ran.get((Op.BACKWARD, (stage, m - self._in_flight)), -1))
    self._add(n, Op.FORWARD, key, at)

  def add_backward(self, n: int, key: Key) -> None:
    is_last = key[0] + 1 == len(self.owners)
    at = 0 if is_last else self._find_input(n, "grads", key)
    if (Op.FORWARD, key) in self._ran:
      at = max(at, self._ran[Op.FORWARD, key])
    else:
      self._start[n, "residuals"].add(key)
    self._add(n, Op.BACKWARD, key, at)

  def start(self, n: int, num_microbatches: int) -> holdings_lib.Holdings:
    """Returns the arrays that a node must have before the first tick."""
    activations, grads, residuals = (
        frozenset(self._start[n, kind]) for kind in ("activations", "grads", "residuals")
    )
    owned = [s for s, owner in base.by_stage(self.owners) if owner == n]
    keys = itertools.product(owned, range(num_microbatches))
    accumulated = frozenset(key for key in keys if (Op.BACKWARD, key) not in self._ran)
    return holdings_lib.Holdings(activations, grads, residuals, accumulated=accumulated)

  def _add(self, n: int, op: Op, key: Key, at: int) -> None:
    at = max(at, self._free[n, op])
    self._ran[op, key], self._free[n, op] = at, at + 1
    self.ticks[at, n]["forward" if op is Op.FORWARD else "backward"] = key
    self.num_ticks = max(self.num_ticks, at + 1)

  def _find_input(self, n: int, kind: str, key: Key) -> int:
    """Returns the first tick in which a node may read an array."""
    if at := self._there.get((n, (kind, key))):
      return at
    _, (stage, _) = made = _maker(kind, key)
    if made in self._ran and self.owners[stage] == n:
      return self._ran[made] + 1
    self._start[n, kind].add(key)
    return 0


def _kind(op: Op) -> str:
  return "activations" if op in (Op.SEND_ACTIVATION, Op.RECV_ACTIVATION) else "grads"


def _maker(kind: str, key: Key) -> tuple[Op, Key]:
  """Returns the pass that makes an array."""
  if kind == "activations":
    return Op.FORWARD, key
  return Op.BACKWARD, (base.StageId(key[0] + 1), key[1])


def fill(table: TickTable, *, costs: costs_lib.StageCosts, budget: float) -> TickTable:
  """Returns a table of a whole step with redundant forward passes.

  First they take the time that nodes have left in their ticks. Others may
  lengthen ticks, early ones first, until the step is longer by the fraction
  `budget`; with `math.inf` all passes are run.
  """
  ticks = [[*row] for row in table.ticks]
  time_ms = [[sum(map(costs.pass_ms, own.passes)) for own in row] for row in ticks]
  lasts_ms = [*map(max, time_ms)]
  left_ms = budget * sum(lasts_ms) if budget else 0.0
  rules, done = [], [set[Instruction]() for _ in range(table.num_nodes)]
  for n in range(table.num_nodes):
    replica = table.stages_of(n)[1]
    passes = [Instruction(replica, Op.REDUNDANT_FORWARD, m) for m in range(table.num_microbatches)]
    times_ms = {i: costs.pass_ms(i) for i in passes}
    rules.append(rule_lib.WaitRule(passes, times_ms, latest_ms={}, span_ms=0.0))
  for is_free in (True, False):
    made = [set[Key]() for _ in rules]
    for (t, row), (n, rule) in itertools.product(enumerate(ticks), enumerate(rules)):
      if key := row[n].forward:
        made[n].add(key)
      while len(row[n].redundant) < MAX_REDUNDANT and (i := rule.find_next(done[n], made[n])):
        end_ms = lasts_ms[t] + (0.0 if is_free else left_ms)
        if not dataclasses.replace(rule, span_ms=end_ms).fits(i, None, now_ms=time_ms[t][n]):
          break
        done[n].add(i)
        row[n] = row[n]._replace(redundant=(*row[n].redundant, (i.stage, i.microbatch)))
        time_ms[t][n] += costs.pass_ms(i)
        left_ms -= max(0.0, time_ms[t][n] - lasts_ms[t])
        lasts_ms[t] = max(lasts_ms[t], time_ms[t][n])
  return dataclasses.replace(table, ticks=tuple(map(tuple, ticks)))
