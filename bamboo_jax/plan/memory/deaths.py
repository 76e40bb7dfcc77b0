"""Memory of nodes with their roles before and after a death.

A death gives a stage to its shadow, which then owns two; and both stages that
have lost a copy get a new one, one of them on the node before. Without replicas
the owner of the stage in another
pipeline computes the shares of both. So a run needs the memory of the worst
death, not that of a step without one.
"""

from collections.abc import Sequence
import dataclasses
import functools

from bamboo_jax import base
from bamboo_jax.plan.memory import model as model_lib, needs, upkeep as upkeep_lib
from bamboo_jax.schedule import failover

Roles = failover.Roles


def roles_after(roles: Roles, victim: base.NodeId) -> Roles:
  """Returns the roles in the step after the one in which `victim` died."""
  after, _ = failover.fail_over(roles, {}, [victim])
  return Roles.initial(after.owners, has_replicas=bool(roles.shadows))


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
  victim: base.NodeId | None = None
  stands_in: bool = False

  @property
  def stages(self) -> frozenset[base.StageId]:
    """Owned stages and replicas."""
    return frozenset(self.owned + self.replicas)

  def need(self, model: model_lib.MemoryModel, bounds: Sequence[int]) -> needs.NodeMemory:
    """Returns the memory of the node if stages start at the layers `bounds`."""
    ends = lambda stage: (bounds[stage], bounds[stage + 1])
    others = self.owned if self.stands_in else ()
    return needs.add(
        [model.owner(s, *ends(s)) for s in self.owned]
        + [model.shadow(*ends(s)) for s in self.replicas]
        + [model.rerouted(s, *ends(s)) for s in others]
    )


@functools.cache
def find_duties(num_stages: int, upkeep: upkeep_lib.Upkeep) -> tuple[Duty, ...]:
  """Returns the duties of all nodes, then those changed by any single death."""
  protection = upkeep.protection
  roles = Roles.initial(base.nodes(num_stages), has_replicas=bool(protection))
  duties = _duties_of(roles)
  if upkeep.num_rerouted and not protection:
    duties += [dataclasses.replace(d, stands_in=True) for d in duties]
  before = {(d.node, d.owned, d.replicas) for d in duties}
  for victim in roles.nodes if roles.shadows else ():
    after = roles_after(roles, victim)
    duties += [
        dataclasses.replace(duty, victim=victim)
        for duty in _duties_of(after)
        if (duty.node, duty.owned, duty.replicas) not in before
    ]
  return tuple(duties)


def _duties_of(roles: Roles) -> list[Duty]:
  return [Duty(node, roles.stages_of(node), roles.replicas_of(node)) for node in roles.nodes]
