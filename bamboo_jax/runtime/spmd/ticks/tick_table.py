"""The passes of each node in each tick of a program, and the slots of arrays.

A program runs in lockstep: in a tick each node runs at most one forward and one
backward pass, forward first, then all exchange results. So with P stages F(m)
of stage s is in tick m + s and B(m) in tick m + 2 (P - 1) - s, and a step takes
as long as with 1F1B, with 2 (P - s) - 1 microbatches in flight on stage s.

A tick lasts as long as the passes of its busiest node. In the rest of it other
nodes can run redundant forward passes.

The rest of a step after a death is a table too: nodes own several stages, and
`Held` is their data. Nodes form a ring: each sends activations to the next and
gradients to the one before.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import itertools

import numpy as np

from bamboo_jax import base
from bamboo_jax.schedule import holdings as holdings_lib

Key = holdings_lib.Item  # Stage and microbatch.


@dataclasses.dataclass(frozen=True, slots=True)
class Pass:
  """One pass of a node in a tick; -1 means none.

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
  stage: base.StageId = base.StageId(-1)
  hold: int = -1
  inputs: int = -1
  residual: int = -1
  output: int = -1
  host: int = -1

  def __bool__(self) -> bool:
    return self.microbatch >= 0

  @property
  def key(self) -> Key:
    """Its stage and microbatch."""
    return self.stage, self.microbatch


@dataclasses.dataclass(frozen=True, slots=True)
class Tick:
  """The passes of one node in one tick.

  Attributes:
    forwards: Forward passes in order: one of its own stages, then redundant
      ones, which have a slot in host memory, at most `MAX_REDUNDANT`.
    backward: The backward pass, after them.
    arriving_inputs: Slot for the activation sent by the previous node.
    arriving_grads: Slot for the gradient sent by the next node.
  """

  forwards: tuple[Pass, ...] = ()
  backward: Pass = Pass()
  arriving_inputs: int = -1
  arriving_grads: int = -1

  @property
  def forward(self) -> Pass:
    """The forward pass of one of the node's own stages."""
    return next((f for f in self.forwards if f.host < 0), Pass())


MAX_REDUNDANT = 3
NUM_FORWARDS = 1 + MAX_REDUNDANT
NUM_FIELDS = (NUM_FORWARDS + 1) * len(dataclasses.fields(Pass)) + 2


@dataclasses.dataclass(frozen=True)
class Held:
  """The data of a node at the start of a table: slots by stage and microbatch.

  Attributes:
    activations: Outputs of stages.
    grads: Gradients with respect to outputs of stages.
    residuals: Residuals on the device.
    host: Residuals in host memory.
    accumulated: Backward passes whose gradients are in the node's sums.
  """

  activations: Mapping[Key, int] = dataclasses.field(default_factory=dict)
  grads: Mapping[Key, int] = dataclasses.field(default_factory=dict)
  residuals: Mapping[Key, int] = dataclasses.field(default_factory=dict)
  host: Mapping[Key, int] = dataclasses.field(default_factory=dict)
  accumulated: frozenset[Key] = frozenset()

  def holdings(self) -> holdings_lib.Holdings:
    """Returns the data as `Holdings`, for the scheduler."""
    return holdings_lib.Holdings(
        activations=frozenset(self.activations),
        gradients=frozenset(self.grads),
        residuals=frozenset([*self.residuals, *self.host]),
        accumulated=self.accumulated,
    )


NOTHING = Held()


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
    ticks: Passes by tick, then node.
    start: Data of each node before the first tick.
    num_slots: Number of slots of "activations", "grads" and "residuals" on each
      node: the maximum over nodes, at least 1.
  """

  owners: tuple[int, ...]
  num_microbatches: int
  ticks: tuple[tuple[Tick, ...], ...]
  start: tuple[Held, ...]
  num_slots: Mapping[str, int]

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
    return stages_of(self.owners, node)

  def as_array(self, first: int, stop: int) -> np.ndarray:
    """Returns ticks `first` to `stop - 1`, int32[nodes, ticks, NUM_FIELDS].

    A row has the fields of all forward passes and of the backward pass, then
    the slots of the two arrivals. Ticks beyond the last have no passes.
    Redundant forward passes write their residuals to the slots of `offloads`.
    """
    idle = (Tick(),) * self.num_nodes
    rows = (*self.ticks, *[idle] * (stop - len(self.ticks)))[first:stop]
    offloads = [self.offloads(n, first, stop) for n in range(self.num_nodes)]
    return np.array(
        [[_fields(row[n], slots) for row in rows] for n, slots in enumerate(offloads)], np.int32
    )

  def offloads(self, node: int, first: int, stop: int) -> dict[Key, int]:
    """Returns the slots of residuals that a node moves to host memory.

    In ticks `first` to `stop - 1`, by stage and microbatch.
    """
    keys = [p.key for row in self.ticks[first:stop] for p in row[node].forwards if p.host >= 0]
    return {key: slot for slot, key in enumerate(keys)}


def _fields(tick: Tick, offloads: Mapping[Key, int]) -> tuple[int, ...]:
  forwards = [
      dataclasses.replace(p, host=offloads.get(p.key, -1))
      for p in (*tick.forwards, *[Pass()] * NUM_FORWARDS)[:NUM_FORWARDS]
  ]
  fields = [x for p in (*forwards, tick.backward) for x in dataclasses.astuple(p)]
  return (*fields, tick.arriving_inputs, tick.arriving_grads)
