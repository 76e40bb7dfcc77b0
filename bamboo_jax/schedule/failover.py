"""Owners and shadows of stages, before and after a death.

The shadow of a stage holds an up-to-date replica of its state. It is the owner
of the nearest earlier stage that is on another node, cyclically (Bamboo,
NSDI'23, section 5). So the stages of a node are contiguous, and when it dies
they go to the owner of the stages before, which has their input.

After a death some stages have no shadow: those that moved, and those whose
replica was on the victim. Until they get one by a copy, the death of their
owner cannot be survived here. All functions are pure: the runtime moves the
state.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
import dataclasses

from bamboo_jax import base
from bamboo_jax.schedule import holdings as holdings_lib


@dataclasses.dataclass(frozen=True)
class Roles:
  """The owner and the shadow of each stage of one pipeline.

  Attributes:
    owners: Node that owns each stage; its stages are contiguous, cyclically.
    shadows: For each stage with an up-to-date replica, the node that holds it:
      always `natural_shadow(owners, stage)`.
  """

  owners: tuple[base.NodeId, ...]
  shadows: Mapping[base.StageId, base.NodeId] = dataclasses.field(default_factory=dict, hash=False)

  def __post_init__(self) -> None:
    object.__setattr__(self, "shadows", dict(sorted(self.shadows.items())))
    wanted = {s: natural_shadow(self.owners, s) for s in self.shadows}
    assert self.shadows == wanted, f"{self}: shadows must be {wanted}"

  @classmethod
  def initial(cls, owners: Iterable[base.NodeId], *, has_replicas: bool = True) -> "Roles":
    """Returns roles with a replica of each stage, unless one node owns all."""
    owners = tuple(owners)
    shadows = ((s, natural_shadow(owners, s)) for s in base.stages(len(owners)) if has_replicas)
    return cls(owners, {s: node for s, node in shadows if node is not None})

  @property
  def num_stages(self) -> int:
    """Number of stages."""
    return len(self.owners)

  @property
  def nodes(self) -> tuple[base.NodeId, ...]:
    """Nodes of the pipeline, by their first stage."""
    return tuple(dict.fromkeys(self.owners))

  def stages_of(self, node: base.NodeId) -> tuple[base.StageId, ...]:
    """Returns the stages that `node` owns, ascending."""
    return tuple(s for s, owner in base.by_stage(self.owners) if owner == node)

  def replicas_of(self, node: base.NodeId) -> tuple[base.StageId, ...]:
    """Returns the stages whose shadow is `node`, ascending."""
    return tuple(s for s, shadow in self.shadows.items() if shadow == node)

  def renumbered(self, numbers: Mapping[base.NodeId, base.NodeId] | None = None) -> "Roles":
    """Returns the roles with node `n` renamed to `numbers[n]`.

    By default the nodes of the pipeline are numbered up to -1, in order, as new ones.
    """
    if numbers is None:
      numbers = dict(zip(self.nodes, base.nodes(-len(self.nodes), 0), strict=True))
    return Roles(
        tuple(numbers[node] for node in self.owners),
        {stage: numbers[node] for stage, node in self.shadows.items()},
    )


@dataclasses.dataclass(frozen=True, slots=True)
class StageCopy:
  """A stage's state to be copied from one node to another."""

  stage: base.StageId
  source: base.NodeId
  destination: base.NodeId


@dataclasses.dataclass(frozen=True)
class Repair:
  """The result of giving stages to spare nodes between two steps.

  Attributes:
    roles: Every stage has a shadow unless one node owns all.
    used: Spares that got a stage.
    num_replicas: Number of stages that get another shadow.
  """

  roles: Roles
  used: tuple[base.NodeId, ...]
  num_replicas: int


def natural_shadow(owners: Sequence[base.NodeId], stage: base.StageId) -> base.NodeId | None:
  """Returns the node that should hold the replica of `stage`.

  That is the owner of the nearest earlier stage, cyclically, on another node;
  None if one node owns all stages.
  """
  for back in range(1, len(owners)):
    if owners[stage - back] != owners[stage]:
      return owners[stage - back]
  return None


def fail_over(
    roles: Roles, lost: Collection[base.NodeId], vacant: Collection[base.StageId] = ()
) -> tuple[Roles, frozenset[base.StageId]]:
  """Gives the stages of lost nodes to their shadows; also returns those without a copy now.

  A stage of a lost node goes to its shadow; it has no shadow afterwards, like a
  stage whose shadow is lost. The result can be failed over again, in the same
  step or later. A stage without a copy keeps its owner, as `vacant` ones did before.

  Args:
    lost: Dead nodes; nodes of other pipelines are ignored.
  """
  owners = [*base.by_stage(roles.owners)]
  shadows = {s: n for s, n in roles.shadows.items() if n not in lost}
  orphaned = {s for s, owner in owners if owner in lost and s not in vacant}
  gone = frozenset(orphaned - shadows.keys())
  after = Roles(
      tuple(shadows[s] if s in orphaned - gone else n for s, n in owners),
      {s: n for s, n in shadows.items() if s not in orphaned},
  )
  return after, gone


def find_valid(
    roles: Roles, holdings: Mapping[base.NodeId, holdings_lib.Holdings]
) -> dict[base.NodeId, holdings_lib.Holdings]:
  """Returns, by node, the held values that are still valid after a failover to `roles`.

  These are residuals of stages that it owns or shadows, sums of stages that it owns,
  and all activations and gradients, since their bits do not depend on the node that
  computes them. A node that is missing in `holdings` holds nothing.
  """
  return {
      node: holdings.get(node, holdings_lib.NOTHING).limited(
          residuals=(*roles.stages_of(node), *roles.replicas_of(node)),
          accumulated=roles.stages_of(node),
      )
      for node in roles.nodes
  }


def repair(roles: Roles, spares: Sequence[base.NodeId]) -> Repair:
  """Returns the roles after spares relieve nodes that own several stages.

  While there are such nodes and spares, the node with most stages gives its
  last one to the next of `spares` (alive, without a stage, in the order of
  use); with enough spares it keeps the stage it had before the failures. Stages
  without a shadow get one even without spares.
  """
  assert not {*spares} & {*roles.owners}, (roles, spares)
  after, used, stages = roles, [], base.stages(roles.num_stages)
  for spare in spares:
    before = after.owners
    counts = [before.count(node) for node in before]
    lasts = [s for s in stages if before[s] != before[s + 1 - len(stages)]] or stages[-1:]
    stage = max(lasts, key=counts.__getitem__)  # The first if tied.
    if counts[stage] == 1:
      break
    owners = (*before[:stage], spare, *before[stage + 1 :])
    # The copy of the former owner may be the replica.
    held = {**after.shadows, stage: before[stage]}
    after = Roles(owners, {s: n for s, n in held.items() if n == natural_shadow(owners, s)})
    used.append(spare)
  whole = Roles.initial(after.owners)
  return Repair(
      roles=whole, used=tuple(used), num_replicas=len(whole.shadows.keys() - after.shadows.keys())
  )
