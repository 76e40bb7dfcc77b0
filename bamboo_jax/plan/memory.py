"""Device memory of a node, by purpose and by phase of the step.

  purpose                  compute  reduce  refresh  apply
  parameters, slots           x        x       x       x    of its stages
  replicas, buffers           x        x       x       x    permanent
  accumulators                x        x       x       x    until the next step
  residuals, transfers        x                             while rows run
  cast weights                x                             while rows run
  sums                                 x       x       x    over all shares
  received                                     x       x    for replicas
  slots from the host                                  x    of one replica
  working memory of           passes   sums    links

So the peak is that of the worst phase, not the sum of all. `compute` includes
the start of the phases; norms and the vote need negligible memory.

What a node keeps follows from its duty: the stages that it owns, and those of
which it has a replica. A death gives a stage to its shadow, which then owns two;
and both stages that have lost a copy get a new one, one of them on the node
before. So a run needs the memory of the worst death. While rows run, each stage
has as many residuals as it may have microbatches in flight, and on either side
one activation and one gradient; rows need no more (`tests/plan/memory_test.py`).
"""

from collections.abc import Iterable, Sequence
import dataclasses
import functools
import itertools

from bamboo_jax import base, config as config_lib
from bamboo_jax.plan import cost_model
from bamboo_jax.schedule import failover


@dataclasses.dataclass(frozen=True)
class Upkeep:
  """The memory that a node keeps besides its stage.

  Attributes:
    num_accumulators: Sums of gradients, one for each share of its pipeline.
    num_rerouted: Shares of a pipeline that has lost a stage, which other owners
      of that stage compute; 0 if none do.
    num_shares: Shares of the batch; several are summed into another array.
    protection: Options of replicas.
    is_remote: Whether transfers are between processes, with a buffer at the
      receiving end; else they are copies within one.
  """

  num_accumulators: int = 1
  num_rerouted: int = 0
  num_shares: int = 1
  protection: config_lib.RedundancySection = config_lib.RedundancySection()
  is_remote: bool = False


PLAIN = Upkeep()
# For published systems, which sum during backward passes: the sum is in memory
# while rows run. One share per pipeline, without replicas.
OVERLAPPED = Upkeep(num_accumulators=2)


@dataclasses.dataclass(frozen=True)
class NodeMemory:
  """Bytes on the device of a node.

  Attributes:
    parameter_bytes: Parameters of the stages that it owns.
    slot_bytes: Optimizer slots of these stages.
    replica_bytes: Parameters of replicas, and their slots if on the device.
    buffer_bytes: Buffers of links from other processes.
    accumulator_bytes: Gradient accumulators, one per share.
    copy_bytes: Weights that are cast for passes; those of a replica too if
      there are redundant forward passes.
    residual_bytes: Residuals of all microbatches in flight.
    transfer_bytes: Arrays in flight to or from a neighbour.
    working_bytes: Temporary memory of the largest program in rows.
    sum_bytes: Sums over all shares, and gradients of tied parameters.
    received_bytes: Data received for replicas; also the next state of the own
      stages if the state is sent.
    fetched_bytes: Slots of a replica fetched from host memory for the update.
    sum_working_bytes: Temporary memory of a sum over shares.
    link_working_bytes: Temporary memory of links between processes in the
      refresh.
  """

  parameter_bytes: int = 0
  slot_bytes: int = 0
  replica_bytes: int = 0
  buffer_bytes: int = 0
  accumulator_bytes: int = 0
  copy_bytes: int = 0
  residual_bytes: int = 0
  transfer_bytes: int = 0
  working_bytes: int = 0
  sum_bytes: int = 0
  received_bytes: int = 0
  fetched_bytes: int = 0
  sum_working_bytes: int = 0
  link_working_bytes: int = 0

  @property
  def resident_bytes(self) -> int:
    """Memory between two steps, and the accumulators."""
    state = self.parameter_bytes + self.slot_bytes + self.replica_bytes
    return state + self.buffer_bytes + self.accumulator_bytes

  @property
  def phases(self) -> dict[str, int]:
    """The peak of each phase of the step."""
    summed = self.resident_bytes + self.sum_bytes
    refreshed = summed + self.received_bytes
    passes = self.residual_bytes + self.transfer_bytes + self.working_bytes
    return {
        "compute": self.resident_bytes + self.copy_bytes + passes,
        "reduce": summed + self.sum_working_bytes,
        "refresh": refreshed + self.link_working_bytes,
        "apply": refreshed + self.fetched_bytes,
    }

  @property
  def total_bytes(self) -> int:
    """The peak of the step."""
    return max(self.phases.values())


# Several programs of a node run one after the other, several replicas are
# updated one after the other.
_LARGEST = ("working_bytes", "fetched_bytes", "sum_working_bytes", "link_working_bytes")


def add(parts: Sequence[NodeMemory]) -> NodeMemory:
  """Returns the memory of a node with several stages and replicas."""
  return NodeMemory(
      **{
          f.name: (max if f.name in _LARGEST else sum)([getattr(part, f.name) for part in parts])
          for f in dataclasses.fields(NodeMemory)
      }
  )


@dataclasses.dataclass(frozen=True)
class Duty:
  """The stages that a node owns and those of which it holds replicas.

  Attributes:
    victim: The node whose death led to these roles; None without a death, or
      if it was in another pipeline.
    stands_in: Whether it computes its stages for another pipeline too.
  """

  node: base.NodeId
  owned: tuple[base.StageId, ...]
  replicas: tuple[base.StageId, ...]
  victim: base.NodeId | None = dataclasses.field(default=None, compare=False)
  stands_in: bool = False

  def __str__(self) -> str:
    text = f"node {self.node} with stage{'s' * (len(self.owned) > 1)} "
    text += ", ".join(map(str, self.owned))
    if self.replicas:
      text += f" and replicas of {', '.join(map(str, self.replicas))}"
    if self.victim is not None:
      text += f" after the death of node {self.victim}"
    if self.stands_in:
      text += " that computes it for another pipeline too after a death there"
    return text


@functools.cache
def find_duties(num_stages: int, upkeep: Upkeep) -> tuple[Duty, ...]:
  """Returns the duties of all nodes, then those changed by any single death."""
  has_replicas = upkeep.protection.has_replicas
  roles = failover.Roles.initial(base.nodes(num_stages), has_replicas=has_replicas)

  def of(roles: failover.Roles, victim: base.NodeId | None = None) -> list[Duty]:
    return [Duty(n, roles.stages_of(n), roles.replicas_of(n), victim) for n in roles.nodes]

  duties = of(roles)
  if upkeep.num_rerouted and not has_replicas:
    duties += [dataclasses.replace(d, stands_in=True) for d in duties]
  before = {*duties}
  for victim in roles.nodes if roles.shadows else ():
    survivors, _ = failover.fail_over(roles, [victim])
    after = of(failover.Roles.initial(survivors.owners), victim)
    duties += [duty for duty in after if duty not in before]
  return tuple(duties)


class MemoryModel:
  """Memory of owners and shadows of any range of layers; pure.

  All parts are sums over layers, except for the working memory of programs: the
  maximum over units, since programs run one after the other.
  """

  def __init__(
      self,
      layers: Sequence[cost_model.LayerCost],
      *,
      in_flight: Sequence[int],
      upkeep: Upkeep = PLAIN,
      cuts: Iterable[int] | None = None,
      ties: Sequence[cost_model.TieCost] = (),
  ) -> None:
    """Makes a model of the memory of layers.

    Args:
      layers: Their costs for one microbatch, in model order.
      in_flight: Number of microbatches whose residuals each stage keeps.
      cuts: First layer of each unit after the first, where stages may start; by
        default every layer is a unit.
    """
    self.layers, self.in_flight, self.upkeep = tuple(layers), tuple(in_flight), upkeep
    self.num_stages = len(self.in_flight)
    # Layers after which a stage may end.
    self.ends = {*(range(1, len(layers)) if cuts is None else cuts), len(layers)}
    self._activations = (0, *(c.activation_bytes for c in layers[:-1]), 0)
    copies = {(name, t.owner): t.tied_bytes for t in ties for name in (t.owner, t.user)}
    self._tied = [sum(n for (name, _), n in copies.items() if name == c.name) for c in layers]
    # At the first layer of each unit.
    self._unit_gradients, self._unit_slots = [0] * len(layers), [0] * len(layers)
    for first, last in itertools.pairwise(sorted({0, *self.ends})):
      self._unit_gradients[first] = self._sum("gradient_bytes", first, last)
      self._unit_slots[first] = self._sum("slot_bytes", first, last)
    self._owner = functools.cache(self._owner)
    self.shadow = functools.cache(self.shadow)
    self._parts = functools.cache(self._parts)

  def find_needs(self, bounds: Sequence[int]) -> list[tuple[Duty, NodeMemory]]:
    """Returns the memory of each node, then that after any single death.

    Stages start at the layers `bounds`.
    """
    ends, needs = [*itertools.pairwise(bounds)], []
    for duty in find_duties(len(ends), self.upkeep):
      parts = [self.owner(s, *ends[s]) for s in duty.owned]
      parts += [self.shadow(*ends[s]) for s in duty.replicas]
      if duty.stands_in:
        parts += [self.rerouted(s, *ends[s]) for s in duty.owned]
      needs.append((duty, add(parts)))
    return needs

  def total_bytes(self, stage: base.StageId, first: int, last: int) -> int:
    """Returns the peak of an owner that holds a replica of equal size, if any."""
    compute, later, residuals = self._parts(first, last)
    return max(compute + self.in_flight[stage] * residuals, later)

  def _parts(self, first: int, last: int) -> tuple[int, int, int]:
    """Returns the peaks of "compute" without residuals and of later phases, and residuals."""
    own = self._owner(first, last)
    has_shadow = self.upkeep.protection.has_replicas and len(self.in_flight) > 1
    compute, *later = add([own, self.shadow(first, last)] if has_shadow else [own]).phases.values()
    return compute - own.residual_bytes, max(later), own.residual_bytes

  def owner(self, stage: base.StageId, first: int, last: int) -> NodeMemory:
    """Returns the memory of the owner of `stage`, layers [first, last)."""
    one = self._owner(first, last)
    return dataclasses.replace(one, residual_bytes=self.in_flight[stage] * one.residual_bytes)

  def _sum(self, name: str, first: int, last: int) -> int:
    return sum(getattr(c, name) for c in self.layers[first:last])

  def _owner(self, first: int, last: int) -> NodeMemory:
    """Returns the memory of an owner with one microbatch in flight."""
    total = functools.partial(self._sum, first=first, last=last)
    gradients, slots, upkeep = total("gradient_bytes"), total("slot_bytes"), self.upkeep
    edge_bytes = self._activations[first] + self._activations[last]
    k = upkeep.num_accumulators
    return NodeMemory(
        parameter_bytes=total("parameter_bytes"),
        slot_bytes=slots,
        buffer_bytes=upkeep.is_remote * edge_bytes,
        accumulator_bytes=k * gradients,
        copy_bytes=total("copy_bytes"),
        residual_bytes=total("residual_bytes"),
        transfer_bytes=2 * edge_bytes,
        working_bytes=max(c.working_bytes for c in self.layers[first:last]),
        sum_bytes=(upkeep.num_shares > 1) * gradients + k * sum(self._tied[first:last]),
        received_bytes=self._sends_state * (gradients + slots),
        # A share from another device, and with several of them a partial sum,
        # see `runtime.phases.reduce`.
        sum_working_bytes=min(2, upkeep.num_shares - 1) * max(self._unit_gradients[first:last]),
        link_working_bytes=self._link_working(first, last),
    )

  def rerouted(self, stage: base.StageId, first: int, last: int) -> NodeMemory:
    """Returns the memory that an owner needs for another pipeline's shares."""
    one, count = self.owner(stage, first, last), self.upkeep.num_rerouted
    return NodeMemory(
        buffer_bytes=one.buffer_bytes,
        accumulator_bytes=count * self._sum("gradient_bytes", first, last),
        residual_bytes=one.residual_bytes,
        transfer_bytes=one.transfer_bytes,
        sum_bytes=count * sum(self._tied[first:last]),
    )

  def shadow(self, first: int, last: int) -> NodeMemory:
    """Returns the memory of a replica of layers `first` to `last - 1`."""
    protection = self.upkeep.protection
    assert protection.has_replicas, "There are no replicas."
    total = functools.partial(self._sum, first=first, last=last)
    slots, on_host = total("slot_bytes"), protection.slots == "host"
    sent = cost_model.refresh_bytes(self.layers[first:last], protection.refresh)
    working = max(c.working_bytes for c in self.layers[first:last])
    return NodeMemory(
        replica_bytes=total("parameter_bytes") + (0 if on_host else slots),
        buffer_bytes=self.upkeep.is_remote * sent,
        copy_bytes=protection.runs_ahead * total("copy_bytes"),
        working_bytes=protection.runs_ahead * working,
        received_bytes=sent,
        fetched_bytes=on_host * (not self._sends_state) * slots,
        link_working_bytes=self._link_working(first, last),
    )

  def explain(self, bounds: Sequence[int], limit_bytes: int) -> str:
    """Returns the message that no split fits, with the most even as example."""
    duty, memory = max(self.find_needs(bounds), key=lambda need: need[1].total_bytes)
    names = [c.name for c in self.layers[bounds[duty.owned[0]] : bounds[duty.owned[-1] + 1]]]
    protection, need_bytes = self.upkeep.protection, memory.total_bytes
    who = f"stage {duty.node}" if not (protection.has_replicas or duty.stands_in) else str(duty)
    phase = max(memory.phases, key=memory.phases.__getitem__)
    help_ = "Use more stages, smaller microbatches or fewer of them in flight"
    if protection.has_replicas:
      better = {
          'slots="host"': protection.slots == "device",
          'refresh="gradient"': protection.refresh == "state",
          'mode="lazy"': protection.runs_ahead,
          'mode="none"': True,
      }
      help_ += f"; or of config.redundancy {', '.join(k for k, helps in better.items() if helps)}"
    elif self.upkeep.num_rerouted:
      help_ += "; or config.recovery.reroute=False"
    return (
        f"No split of {len(self.layers)} layers into {len(bounds) - 1} stages fits in "
        f"{format_size(limit_bytes)} per device: at best {who} (layers {names[0]} to "
        f"{names[-1]}) needs {format_size(need_bytes)} in phase {phase!r}, which is "
        f"{format_size(need_bytes - limit_bytes)} too much. {help_}."
    )

  @property
  def _sends_state(self) -> bool:
    protection = self.upkeep.protection
    return protection.has_replicas and protection.refresh == "state"

  def _link_working(self, first: int, last: int) -> int:
    """Returns twice the most bytes that a refresh sends of a unit."""
    if not self.upkeep.is_remote or not self.upkeep.protection.has_replicas:
      return 0
    slots = self._sends_state * max(self._unit_slots[first:last])
    return 2 * (max(self._unit_gradients[first:last]) + slots)


def format_mib(num_bytes: int) -> str:
  """Returns MiB with one digit, rounded up, so that only 0 prints as 0.0."""
  return f"{-(-10 * num_bytes // 2**20) / 10:.1f}"


def format_size(num_bytes: int) -> str:
  """Returns GiB from 8 GiB on, else MiB, rounded up to one digit."""
  if num_bytes >= 8 * 2**30:
    return f"{-(-10 * num_bytes // 2**30) / 10:.1f} GiB"
  return f"{format_mib(num_bytes)} MiB"
