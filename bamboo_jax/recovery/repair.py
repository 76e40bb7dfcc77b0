"""Gives places to spare nodes between two steps, and makes replicas.

A spare relieves a node that will be preempted, takes a stage without an owner,
or a stage of a node that owns several, in this order. It copies the state from
a live node.
"""

from collections.abc import Mapping, Sequence
import dataclasses

from bamboo_jax import base
from bamboo_jax.plan import pipelines as pipelines_lib
from bamboo_jax.recovery import layout as layout_lib
from bamboo_jax.schedule import failover

Pipeline = pipelines_lib.Pipeline


def repair(
    layout: layout_lib.Layout, *, has_replicas: bool
) -> tuple[layout_lib.Layout, dict[int, failover.Repair]]:
  """Gives places to spares, and makes replicas; also returns the repairs by pipeline.

  Where stages have replicas, a node may own several.
  """
  pipelines, repairs = list(layout.pipelines), {}
  spares = [node for node in layout.spares if node not in layout.leaving]
  for i, pipeline in enumerate(pipelines):
    places = [
        s
        for s, owner in base.by_stage(pipeline.roles.owners)
        if (s in pipeline.vacant or owner in layout.leaving)
        and find_owner(pipelines, i, s) is not None  # A source of the state.
    ]
    takers = dict(zip(places, spares, strict=False))  # Either may be fewer.
    filled = _fill(pipeline, takers)
    done = failover.Repair(filled.roles, (*takers.values(),), 0)
    if has_replicas and not filled.vacant:
      # Without those that `takers` has.
      more = failover.repair(filled.roles, spares[len(takers) :])
      done = dataclasses.replace(more, used=(*done.used, *more.used))
    if done.used or done.num_replicas:
      pipelines[i] = Pipeline(filled.partition, done.roles, filled.vacant)
      repairs[i] = done
      spares = spares[len(done.used) :]
  if not repairs:
    return layout, repairs
  taken = {node for done in repairs.values() for node in done.used}
  owners = {node for pipeline in pipelines for node in pipeline.nodes}
  relieved = [  # Alive until they are preempted.
      node for pipeline in layout.pipelines for node in pipeline.nodes if node not in owners
  ]
  after = dataclasses.replace(
      layout,
      pipelines=tuple(pipelines),
      spares=(*(n for n in layout.spares if n not in taken), *relieved),
  )
  return after, repairs


def _fill(pipeline: Pipeline, takers: Mapping[base.StageId, base.NodeId]) -> Pipeline:
  """Gives stages to `takers`; drops replicas that are no longer on a shadow."""
  roles = pipeline.roles
  owners = tuple(takers.get(s, n) for s, n in base.by_stage(roles.owners))
  shadows = {s: n for s, n in roles.shadows.items() if n == failover.natural_shadow(owners, s)}
  return Pipeline(
      pipeline.partition, failover.Roles(owners, shadows), pipeline.vacant.difference(takers)
  )


def find_owner(
    pipelines: Sequence[Pipeline], index: int, stage: base.StageId
) -> base.NodeId | None:
  """Returns the owner of `stage` in a pipeline of the same partition, or None.

  Preferably in pipeline `index` itself.
  """
  pipeline = pipelines[index]
  for other in (pipeline, *pipelines):
    if stage not in other.vacant and other.partition == pipeline.partition:
      return other.roles.owners[stage]
  return None
