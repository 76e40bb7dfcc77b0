"""What the nodes that are left agree on after a change of the view.

Each says how far it is and what it holds; from what all have said, each draws
the same conclusion. Pure.
"""

from collections.abc import Collection, Mapping, Sequence
import dataclasses
from typing import Any

from bamboo_jax.schedule import failover
from bamboo_jax.schedule import holdings as holdings_lib

AllRoles = tuple[failover.Roles, ...]  # Of each pipeline.

_SETS = ("activations", "gradients", "residuals", "accumulated")


@dataclasses.dataclass(frozen=True)
class Status:
  """What a node says of itself.

  Attributes:
    steps: Number of steps that it knows to be committed; -1 for a node that has
      just come.
    version: Counts the changes of roles that it knows.
    roles: The roles of each pipeline; empty for a node that has just come.
    holdings: What it holds of step `steps`.
    address: Host and port where its state can be fetched.
  """

  steps: int
  version: int
  roles: AllRoles
  holdings: holdings_lib.Holdings
  address: tuple[str, int]

  def to_json(self) -> dict[str, Any]:
    """Returns plain JSON values."""
    return {
        "steps": self.steps,
        "version": self.version,
        "roles": roles_to_json(self.roles),
        "holdings": {
            name: sorted(getattr(self.holdings, name)) for name in _SETS
        },
        "address": list(self.address),
    }

  @classmethod
  def from_json(cls, content: Mapping[str, Any]) -> "Status":
    """Returns what `to_json` was called on."""
    held = content["holdings"]
    return cls(
        steps=content["steps"],
        version=content["version"],
        roles=roles_from_json(content["roles"]),
        holdings=holdings_lib.Holdings(
            **{name: frozenset(map(tuple, held[name])) for name in _SETS}
        ),
        address=tuple(content["address"]),
    )


@dataclasses.dataclass(frozen=True)
class Agreement:
  """How training goes on.

  Attributes:
    steps: Number of committed steps; the next step is begun, or gone on with.
    known_version: The newest version of the roles that anybody knew.
    version: The same, one more if the roles have changed again.
    roles: The roles of each pipeline, without the dead.
    holdings: For each pipeline what its nodes hold of the step.
    lost: Nodes that had a role and are gone.
    victims: What they owned, as `pipeline/stage`.
    is_fresh: Whether nobody holds anything of the step.
  """

  steps: int
  known_version: int
  version: int
  roles: AllRoles
  holdings: tuple[dict[int, holdings_lib.Holdings], ...]
  lost: frozenset[int]
  victims: tuple[str, ...]
  is_fresh: bool


def agree(statuses: Mapping[int, Status]) -> Agreement:
  """Returns what follows from what all members of a view have said.

  If one of them saw a commit all others had voted for it, so it holds for all.

  Args:
    statuses: By number of the node.

  Raises:
    base.UnrecoverableHereError: A stage has lost owner and replica.
  """
  steps = max(s.steps for s in statuses.values())
  newest = max(statuses.values(), key=lambda s: s.version)
  held = {
      node: status.holdings
      for node, status in statuses.items()
      if status.steps == steps
  }
  lost = nodes_of(newest.roles) - statuses.keys()
  after = [failover.fail_over(r, held, lost) for r in newest.roles]
  return Agreement(
      steps=steps,
      known_version=newest.version,
      version=newest.version + bool(lost),
      roles=tuple(roles for roles, _ in after),
      holdings=tuple(holdings for _, holdings in after),
      lost=frozenset(lost),
      victims=tuple(
          f"{pipeline}/{stage}"
          for pipeline, r in enumerate(newest.roles)
          for stage, owner in enumerate(r.owners)
          if owner in lost
      ),
      is_fresh=all(h == holdings_lib.NOTHING for h in held.values()),
  )


@dataclasses.dataclass(frozen=True)
class Repair:
  """Copies that give all stages an owner of their own and a shadow.

  Attributes:
    roles: The roles of each pipeline when they are done.
    copies: For each pipeline; sources have the state now.
  """

  roles: AllRoles
  copies: tuple[tuple[failover.Copy, ...], ...]

  @property
  def is_needed(self) -> bool:
    """Whether there is anything to copy."""
    return any(self.copies)


def plan_repair(
    roles: Sequence[failover.Roles],
    alive: Collection[int],
    *,
    replicas: bool,
    without_spares: bool,
) -> Repair:
  """Returns how nodes without a role relieve others, between two steps.

  Args:
    roles: The roles of each pipeline.
    alive: All members.
    replicas: Whether stages have shadows at all.
    without_spares: Whether replicas are restored where no spare comes, too.
  """
  spares = sorted(set(alive) - nodes_of(roles))
  after, copies = [], []
  for before in roles:
    plan = failover.repair(before, spares)
    if not replicas or (not plan.used and not without_spares):
      after.append(before)
      copies.append(())
      continue
    spares = [s for s in spares if s not in plan.used]
    source = {c.stage: c.source for c in reversed(plan.owner_copies)}
    shadows = [
        dataclasses.replace(c, source=source.get(c.stage, c.source))
        for c in plan.replica_copies
    ]
    after.append(plan.roles)
    copies.append((*plan.owner_copies, *shadows))
  return Repair(tuple(after), tuple(copies))


def nodes_of(roles: Sequence[failover.Roles]) -> set[int]:
  """Returns the nodes that own a stage."""
  return {node for r in roles for node in r.owners}


def roles_to_json(roles: Sequence[failover.Roles]) -> list[Any]:
  """Returns roles as plain JSON values."""
  return [[list(r.owners), sorted(r.shadows.items())] for r in roles]


def roles_from_json(content: Sequence[Any]) -> AllRoles:
  """Returns what `roles_to_json` was called on."""
  return tuple(
      failover.Roles(tuple(owners), dict(map(tuple, shadows)))
      for owners, shadows in content
  )
