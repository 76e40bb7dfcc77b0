"""All nodes that this process drives, and their roles.

Nodes hold state, and carry out instructions; layers of stages, roles and the order of
instructions are passed in as plain values. The phases of a step are functions of the
engine, see `phases`; `training` makes a transaction of them. Nodes of other processes are
driven there in the same way; links and sums connect them.
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
from bamboo_jax.schedule import failover

# Owners by stage, and the shares that take this path through the nodes.
Lines = Sequence[tuple[tuple[base.NodeId, ...], Sequence[base.ShareId]]]


class Engine:
  """The nodes of this process.

  Attributes:
    units: The units of the model, by first layer.
    nodes: The nodes that this process drives, by number.
    devices: The device of each local node, also of nodes that join later.
    roles: For each pipeline, the owners and shadows of its stages.
    lines: The node that computes each stage, for groups of shares; at first the
      owners of each pipeline for its shares.
    ties: The copies of each tied parameter.
    exchange: Connects this process with others; None without.
    clock: Clock of nodes whose layers sleep rather than compute.
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
    self.links = links_lib.Links(exchange, self.find_compute)
    roles = [failover.Roles(tuple(row)) for row in owners]
    shares = batch_split.deal_shares(num_shares, len(roles))
    self.set_pipelines(roles, [*zip((own.owners for own in roles), shares, strict=True)])

  def load_programs(self, node: base.NodeId, stage: base.StageId) -> None:
    if node not in self.devices:  # Of another process.
      return
    if node not in self.nodes:
      device = self.find_compute(node)
      sends_host = self.exchange is not None or device != self.devices[node]
      self.nodes[node] = node_lib.Node(
          *(node, device, self.specs, self.links, self.clock, self.programs, self._residuals),
          store=store_lib.StepArrays(sends_host=sends_host),
      )
    self.nodes[node].load_programs(stage)

  def find_compute(self, node: base.NodeId) -> places.Place:
    """Returns where a node of this process computes."""
    return devices_lib.compute_of(self.devices[node], self.mesh)

  def set_pipelines(self, roles: Sequence[failover.Roles], lines: Lines) -> None:
    """Changes the roles in all pipelines, and who computes the shares.

    State for a new role must be copied first, see `replicas`; state without a
    role is dropped.
    """
    self.roles, self.lines = tuple(roles), lines
    keeps = set()
    for own in roles:
      for stage, node in (*base.by_stage(own.owners), *own.shadows.items()):
        self.load_programs(node, stage)
        keeps |= {(node, name) for name in self.specs[stage].names}
    for number, node in self.nodes.items():
      node.state = {n: state for n, state in node.state.items() if (number, n) in keeps}

  @property
  def owners(self) -> list[tuple[base.NodeId, ...]]:
    """For each pipeline, the node of each stage."""
    return [own.owners for own in self.roles]

  @property
  def has_copies(self) -> bool:
    """Whether some layer is on more than one node."""
    return len(self.roles) > 1 or any(own.shadows for own in self.roles)

  def kill(self, number: base.NodeId) -> None:
    """Deletes a node and its arrays, as its death would."""
    node = self.nodes.pop(number)
    # On a shared device the buffers may be those of another node.
    if all(n.device != node.device for n in self.nodes.values()):
      for array in jax.tree.leaves([*node.state.values(), node.store.arrays()]):
        if not array.is_deleted():
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
    self._per_share = num_microbatches // self.num_shares
    for node in self.nodes.values():
      # Without a copy the step cannot go on after a death.
      node.store.keep = self._keep and self.has_copies
      node.begin_step(step, feed, microbatches_per_share=self._per_share)

  def move_slots(self) -> None:
    """Moves slots of replicas to the memory in which they wait for the update."""
    for own in self.roles if self.replicas.slots == "host" else ():
      for stage, node in own.shadows.items():
        if node in self.nodes:
          self.nodes[node].move_slots(stage)

  @property
  def num_microbatches(self) -> int:
    """Microbatches of the current step, without dropped ones."""
    return self._per_share * sum(len(shares) for _, shares in self.lines)

  def adders(self, nodes: Iterable[base.NodeId]) -> list[jax.Device]:
    """Returns the devices on which sums of local `nodes` are added.

    With other processes it is the CPU, as for sums of several nodes: other devices may keep
    denormal numbers, and a death may leave all parts on one node.
    """
    if self.exchange is not None:
      return [jax.local_devices(backend="cpu")[0]]
    return list(dict.fromkeys(self.devices[node] for node in nodes))

  def wait(self) -> None:
    """Blocks until sums and states are ready; raises their errors."""
    nodes = self.nodes.values()
    jax.block_until_ready([(n.state, n.store.totals, n.store.proposed) for n in nodes])
