"""All nodes that this process drives, and their roles.

The engine holds state and carries out instructions; layers of stages, owners,
shadows and the order of instructions are passed in as plain values. The phases
of a step are functions of the engine, see `phases`; `train` makes a transaction
of them. Nodes of other processes are driven there in the same way; links and
sums connect them.
"""

from collections.abc import Iterable, Mapping, Sequence

import jax

from bamboo_jax import base, config as config_lib
from bamboo_jax.plan import batch_split
from bamboo_jax.runtime import devices as devices_lib, node as node_lib, places
from bamboo_jax.runtime.stage import (
    array_store as store_lib,
    programs as programs_lib,
    spec as spec_lib,
)
from bamboo_jax.runtime.wire import links as links_lib, transport as transport_lib
from bamboo_jax.schedule import instruction as instruction_lib

Owners = Sequence[Sequence[base.NodeId]]  # By pipeline and stage.
# Owners by stage, and the shares that take this path through the nodes.
Lines = Sequence[tuple[Sequence[base.NodeId], Sequence[base.ShareId]]]

UnitOnNode = tuple[int, base.NodeId]  # First layer of a unit.


class Engine:
  """The nodes of this process.

  Attributes:
    units: The units of the model, by first layer.
    nodes: The nodes that this process drives, by number.
    devices: The device of each local node, also of nodes that join later.
    owners: For each pipeline, the node of each stage.
    shadows: For each pipeline, the nodes that hold replicas, by stage.
    shares: For each pipeline, its shares of the batch.
    lines: The node that computes each stage, for groups of shares; by default
      the owners of each pipeline for its shares.
    ties: The copies of each tied parameter.
    exchange: Connects this process with others; None without.
    clock: Clock of nodes whose layers sleep rather than compute.

  Results of earlier phases of a step, on local nodes:
    tied: Accumulators with the sum of all copies of tied parameters, by unit
      and share; the others are in the node's store.
    totals: Sums over all shares, by unit and node: of owners, of nodes that computed
      shares, and of shadows that received them. Nodes of one device share them.
    proposed: States after the step, if computed before the commit, by unit and
      node.
  """

  def __init__(
      self,
      specs: Sequence[spec_lib.StageSpec],
      *,
      owners: Sequence[Sequence[base.NodeId]],
      devices: Mapping[base.NodeId, jax.Device],
      num_shares: int,
      keep: bool = False,
      replicas: config_lib.RedundancySection | None = None,
      mesh: tuple[int, int] = (1, 1),
      cache: programs_lib.ProgramCache | None = None,
      residuals: str = "host",
      exchange: transport_lib.Transport | None = None,
  ) -> None:
    """Makes the nodes that own stages; compiles nothing yet.

    Spares have a device too; nodes may share one.

    Args:
      num_shares: A multiple of the number of pipelines.
      mesh: Devices on which each node computes, by data and tensor.
      residuals: Where those of redundant passes wait, see `plan.residuals`.
      exchange: Connects this process, which then has one node, with others.
    """
    self.specs = tuple(specs)
    self.units = {unit.first: unit for spec in specs for unit in spec.units}
    self.ties = spec_lib.find_ties(specs)
    self.replicas = replicas or config_lib.RedundancySection(mode="bubble")
    self.programs = programs_lib.ProgramCache() if cache is None else cache
    self.exchange = exchange
    self.num_shares, self._per_share = num_shares, 0
    self.clock = node_lib.Clock()
    self._keep, self._residuals = keep, residuals
    self.mesh = mesh
    self.nodes: dict[base.NodeId, node_lib.Node] = {}
    self.devices = dict(devices)
    self._forget_results()
    self.links = links_lib.Links(exchange, self.find_compute)
    shares = batch_split.deal_shares(num_shares, len(owners))
    self.set_pipelines(owners, [{} for _ in owners], shares)

  def load_programs(self, node: base.NodeId, stage: base.StageId) -> None:
    device = self.find_compute(node)
    if device is None:
      return
    if node not in self.nodes:
      sends_host = self.exchange is not None or device != self.devices[node]
      self.nodes[node] = node_lib.Node(
          *(node, device, self.specs, self.links, self.clock, self.programs, self._residuals),
          store=store_lib.StepArrays(sends_host=sends_host),
      )
    self.nodes[node].load_programs(stage)

  def find_compute(self, node: base.NodeId) -> places.Place | None:
    """Returns where a node computes; None if in another process."""
    device = self.devices.get(node)
    return None if device is None else devices_lib.compute_of(device, self.mesh)

  def set_pipelines(
      self,
      owners: Sequence[Sequence[base.NodeId]],
      shadows: Sequence[Mapping[base.StageId, base.NodeId]],
      shares: Sequence[Sequence[base.ShareId]],
      lines: Lines | None = None,
  ) -> None:
    """Changes the roles in all pipelines.

    State for a new role must be copied first, see `replicas`; state without a
    role is dropped.
    """
    self.owners = [tuple(row) for row in owners]
    self.shadows = [dict(replicas) for replicas in shadows]
    self.shares = [tuple(own) for own in shares]
    self.lines = lines or [*zip(self.owners, self.shares, strict=True)]
    keeps = set()
    for row, replicas in zip(self.owners, self.shadows, strict=True):
      for stage, node in (*base.by_stage(row), *replicas.items()):
        self.load_programs(node, stage)
        keeps |= {(node, name) for name in self.specs[stage].names}
    for number, node in self.nodes.items():
      node.state = {n: state for n, state in node.state.items() if (number, n) in keeps}

  def kill(self, number: base.NodeId) -> None:
    """Deletes a node and its arrays, as its death would."""
    node = self.nodes.pop(number)
    held = [*node.state.values(), node.store.arrays()]
    for values in (self.totals, self.proposed):
      held += [values.pop(key) for key in [*values] if key[1] == number]
    # On a shared device the buffers may be those of another node.
    if all(n.device != node.device for n in self.nodes.values()):
      for array in jax.tree.leaves(held):
        if isinstance(array, jax.Array) and not array.is_deleted():
          array.delete()
    node.state.clear()
    node.store.clear()

  def set_state(self, layers: Mapping[str, spec_lib.LayerState]) -> None:
    """Gives every node a copy of the state of its layers."""
    for node in self.nodes.values():
      names = {name for stage in node.units for name in self.specs[stage].names}
      node.put_state({name: layers[name] for name in names})

  def layer_states(self, pipeline: int = 0) -> dict[str, spec_lib.LayerState]:
    """Returns the state of each layer that local owners in `pipeline` hold."""
    layers: dict[str, spec_lib.LayerState] = {}
    for stage, node in base.by_stage(self.owners[pipeline]):
      if node in self.nodes:
        layers |= self.nodes[node].layers_of(stage)
    return layers

  def begin_step(self, step: base.StepId, feed: node_lib.FeedFn, *, num_microbatches: int) -> None:
    """Prepares `step`, with `num_microbatches` in all pipelines together.

    `num_microbatches` is a multiple of the number of shares.
    """
    self.move_slots()  # New replicas are elsewhere.
    self._forget_results()
    self._per_share = num_microbatches // self.num_shares
    # Without a replica the step cannot go on after a death.
    has_copies = any(self.shadows) or len(self.shares) > 1
    for node in self.nodes.values():
      node.store.keep = self._keep and has_copies
      node.begin_step(step, feed, microbatches_per_share=self._per_share)

  def _forget_results(self) -> None:
    self.tied: dict[store_lib.Sum, spec_lib.Accumulator] = {}
    self.totals: dict[UnitOnNode, spec_lib.Accumulator] = {}
    self.proposed: dict[UnitOnNode, spec_lib.LayerState] = {}

  def move_slots(self) -> None:
    """Moves slots of replicas to the memory in which they wait for the update."""
    for replicas in self.shadows if self.replicas.slots == "host" else ():
      for stage, node in replicas.items():
        if node in self.nodes:
          self.nodes[node].move_slots(stage, "pinned_host")

  @property
  def num_microbatches(self) -> int:
    """Microbatches of the current step, without dropped ones."""
    return self._per_share * sum(map(len, self.shares))

  def adders(self, nodes: Iterable[base.NodeId]) -> list[jax.Device]:
    """Returns the devices on which sums of local `nodes` are added.

    With other processes it is the CPU, as for sums of several nodes: other devices may keep
    denormal numbers, and a death may leave all parts on one node.
    """
    if self.exchange is not None:
      return [jax.local_devices(backend="cpu")[0]]
    return list(dict.fromkeys(self.devices[node] for node in nodes))

  def compute(self, order: Iterable[tuple[base.NodeId, instruction_lib.Instruction]]) -> None:
    for number, instruction in order:
      if number in self.nodes:
        self.nodes[number].run(instruction)

  def wait(self) -> None:
    """Blocks until results and states are ready; raises their errors."""
    states = [node.state for node in self.nodes.values()]
    jax.block_until_ready((self.totals, self.proposed, states))
