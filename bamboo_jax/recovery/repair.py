"""Puts spare nodes into places between two steps, and makes replicas.

A spare relieves a node that is about to be preempted, takes a stage that nobody
owns any more, or a stage of a node that owns several, in this order. What it
needs is copied from a node that is alive.
"""

from collections.abc import Sequence
import dataclasses

from bamboo_jax.plan import pipelines as pipelines_lib
from bamboo_jax.recovery import ladder as ladder_lib
from bamboo_jax.schedule import failover

Pipeline = pipelines_lib.Pipeline
Repairs = dict[int, failover.Repair]


def repair(
    state: ladder_lib.State, *, shadow: bool, rereplicate: str
) -> tuple[ladder_lib.State, Repairs]:
  """Returns the state after the repair, and the copies for each pipeline.

  Only if `shadow`, stages have replicas and a node can own several.
  `rereplicate` is that of `ladder.Ladder`.
  """
  pipelines, repairs = list(state.pipelines), {}
  spares = [node for node in state.spares if node not in state.leaving]
  for i, pipeline in enumerate(pipelines):
    places = [
        s
        for s, owner in enumerate(pipeline.roles.owners)
        if (s in pipeline.vacant or owner in state.leaving)
        and find_owner(pipelines, i, s) is not None
    ]
    filled, copies = _fill(pipelines, i, places[: len(spares)], spares)
    used = tuple(copy.destination for copy in copies)
    spares = spares[len(used) :]
    roles, replica_copies = filled.roles, ()
    if shadow and not filled.vacant:
      plan = failover.repair(roles, spares)
      if used or plan.used or rereplicate == "at_commit":
        roles, replica_copies = plan.roles, plan.replica_copies
        copies = (*copies, *plan.owner_copies)
        used = (*used, *plan.used)
        spares = spares[len(plan.used) :]
    if copies or replica_copies:
      pipelines[i] = Pipeline(filled.partition, roles, filled.vacant)
      repairs[i] = failover.Repair(roles, copies, replica_copies, used)
  if not repairs:
    return state, repairs
  taken = {node for plan in repairs.values() for node in plan.used}
  owners = {node for pipeline in pipelines for node in pipeline.nodes}
  relieved = [
      node
      for pipeline in state.pipelines
      for node in pipeline.nodes
      if node not in owners
  ]
  after = dataclasses.replace(
      state,
      pipelines=tuple(pipelines),
      spares=(*(n for n in state.spares if n not in taken), *relieved),
  )
  return after, repairs


def _fill(
    pipelines: Sequence[Pipeline],
    index: int,
    places: Sequence[int],
    spares: Sequence[int],
) -> tuple[Pipeline, tuple[failover.Copy, ...]]:
  """Makes spares own stages `places`; replicas with a wrong shadow vanish."""
  pipeline = pipelines[index]
  owners, copies = list(pipeline.roles.owners), []
  for stage, spare in zip(places, spares, strict=False):
    source = find_owner(pipelines, index, stage)
    copies.append(failover.Copy(stage, source, spare))
    owners[stage] = spare
  shadows = {
      s: n
      for s, n in pipeline.roles.shadows.items()
      if n == failover.natural_shadow(owners, s)
  }
  filled = Pipeline(
      pipeline.partition,
      failover.Roles(tuple(owners), shadows),
      pipeline.vacant - {*places},
  )
  return filled, tuple(copies)


def find_owner(
    pipelines: Sequence[Pipeline], index: int, stage: int
) -> int | None:
  """Returns the owner of `stage`, here or in a pipeline like it, or None."""
  pipeline = pipelines[index]
  for other in (pipeline, *pipelines):
    if stage not in other.vacant and other.partition == pipeline.partition:
      return other.roles.owners[stage]
  return None
