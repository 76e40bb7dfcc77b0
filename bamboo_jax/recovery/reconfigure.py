"""Plans new pipelines from old ones and the nodes that are alive.

Three planners, to be compared:

  by_rules       Oobleck's rules (SOSP'23, section 5): keep, borrow, merge
  by_replanning  the best cover of all nodes, whatever there was before
  by_depth       Bamboo's (NSDI'23): as many pipelines of a given number of
                 stages as there are nodes for; the rest are spares

All of them give nodes to places so that the least is copied. Full re-planning
compares covers by predicted step time, then bytes moved, then nodes moved.
"""

from collections.abc import Sequence
import dataclasses

from bamboo_jax import base
from bamboo_jax.plan import partition as partition_lib
from bamboo_jax.plan import pipelines as pipelines_lib
from bamboo_jax.plan import predictor as predictor_lib
from bamboo_jax.plan import step_time as step_time_lib
from bamboo_jax.recovery import cover as cover_lib
from bamboo_jax.recovery import moves
from bamboo_jax.recovery import triggers

Groups = tuple[tuple[int, ...], ...]


@dataclasses.dataclass(frozen=True)
class Reconfiguration:
  """New pipelines, and how to get there.

  Attributes:
    pipelines: The new pipelines.
    spares: Live nodes without a place.
    num_microbatches: Microbatches of each pipeline in a step.
    step_time: How long a step takes then.
    move: Who copies which layers from whom.
  """

  pipelines: tuple[pipelines_lib.Pipeline, ...]
  spares: tuple[int, ...]
  num_microbatches: tuple[int, ...]
  step_time: step_time_lib.StepTime
  move: moves.Move

  @property
  def cost(self) -> tuple[float, int, int]:
    """What is minimised: step time in ms, bytes moved, nodes moved."""
    return (
        self.step_time.total_ms,
        self.move.num_bytes,
        self.move.num_moved_nodes,
    )


def by_rules(
    before: Sequence[pipelines_lib.Pipeline],
    nodes: Sequence[int],
    *,
    coverer: cover_lib.Coverer,
) -> Reconfiguration:
  """Returns what Oobleck's rules make of the nodes that are left.

  Args:
    before: The pipelines until now; their nodes that are not in `nodes` are
      lost.
    nodes: All nodes that may be used; those that own nothing have joined.
    coverer: Has the templates, and predicts steps.

  Raises:
    base.InfeasibleError: There are too few nodes for f + 1 pipelines, or no
      live node has a copy of some layer.
  """
  templates, predictor = coverer.templates, coverer.predictor
  alive = set(nodes)
  groups = [tuple(n for n in p.nodes if n in alive) for p in before]
  training = {node for group in groups for node in group}
  groups, _ = regroup(
      groups,
      joined=tuple(node for node in nodes if node not in training),
      min_nodes=templates.min_nodes,
      max_nodes=templates.max_nodes,
      min_pipelines=templates.min_pipelines,
  )
  pipelines = []
  for group in groups:
    partition = templates.of(len(group)).partition
    pipelines += _assign(predictor, before, [partition], group)
  return _finish(predictor, before, tuple(pipelines), nodes)


def by_replanning(
    before: Sequence[pipelines_lib.Pipeline],
    nodes: Sequence[int],
    *,
    coverer: cover_lib.Coverer,
) -> Reconfiguration:
  """Returns the best cover of all nodes; see `by_rules` for the rest."""
  templates, predictor = coverer.templates, coverer.predictor
  choices = []
  for cover in coverer.best(len(nodes)):
    partitions = [templates.of(size).partition for size in cover.sizes]
    pipelines = _assign(predictor, before, partitions, nodes)
    choices.append(_finish(predictor, before, pipelines, nodes))
  return min(choices, key=lambda choice: choice.cost)


def by_depth(
    before: Sequence[pipelines_lib.Pipeline],
    nodes: Sequence[int],
    *,
    partition: partition_lib.Partition,
    predictor: predictor_lib.Predictor,
    max_pipelines: int | None = None,
) -> Reconfiguration:
  """Returns as many pipelines like `partition` as there are nodes for.

  Args:
    before: The pipelines until now.
    nodes: All nodes that may be used.
    partition: What each pipeline looks like.
    predictor: Predicts steps.
    max_pipelines: Most pipelines there may be; None does not limit them.

  Raises:
    base.InfeasibleError: There are too few nodes for one pipeline, or no live
      node has a copy of some layer.
  """
  num_pipelines = triggers.target_pipelines(
      len(nodes), num_stages=partition.num_stages, max_pipelines=max_pipelines
  )
  if not num_pipelines:
    raise base.InfeasibleError(
        f"{len(nodes)} nodes are too few for a pipeline of "
        f"{partition.num_stages} stages."
    )
  pipelines = _assign(predictor, before, [partition] * num_pipelines, nodes)
  return _finish(predictor, before, pipelines, nodes)


def regroup(
    groups: Sequence[tuple[int, ...]],
    *,
    joined: Sequence[int] = (),
    min_nodes: int,
    max_nodes: int,
    min_pipelines: int,
) -> tuple[Groups, tuple[int, ...]]:
  """Returns who is in which pipeline by the rules of Oobleck, and the spares.

  A pipeline that has lost nodes is kept if it still has `min_nodes`. Else it
  borrows, one by one, the last node of the largest pipeline. If none can give
  any, it is merged: its nodes go to the smallest pipelines. One that has lost
  all nodes is given up unless it is needed for `min_pipelines`.

  The paper leaves open who gets nodes that join. Here pipelines that are too
  small get them; if there are enough left they make new pipelines; then the
  smallest pipelines grow. Those that find no place are spares.

  Args:
    groups: Nodes of each pipeline that are left, stage by stage.
    joined: Nodes that are in no pipeline yet.
    min_nodes: Nodes of the smallest pipeline: n0.
    max_nodes: Nodes of the largest pipeline: n_max.
    min_pipelines: Number of pipelines that there must be: f + 1.

  Raises:
    base.InfeasibleError: There are too few nodes for that.
  """
  num_nodes = sum(map(len, groups)) + len(joined)
  if num_nodes < min_pipelines * min_nodes:
    raise base.InfeasibleError(
        f"{num_nodes} nodes are too few: {min_pipelines} pipelines of at least "
        f"{min_nodes} nodes need {min_pipelines * min_nodes}."
    )
  left = [list(group) for group in groups if group]
  left += [[] for _ in range(min_pipelines - len(left))]
  waiting = list(joined)
  while short := [group for group in left if len(group) < min_nodes]:
    borrower, largest = max(short, key=len), max(left, key=len)
    if waiting:
      borrower.append(waiting.pop(0))
    elif len(largest) > min_nodes:
      borrower.append(largest.pop())
    else:
      merged = min(short, key=len)
      left = [group for group in left if group is not merged]
      waiting += merged
  while len(waiting) >= min_nodes:
    left.append(waiting[:min_nodes])
    del waiting[:min_nodes]
  while waiting and len(smallest := min(left, key=len)) < max_nodes:
    smallest.append(waiting.pop(0))
  return tuple(map(tuple, left)), tuple(waiting)


def _assign(
    predictor: predictor_lib.Predictor,
    before: Sequence[pipelines_lib.Pipeline],
    partitions: Sequence[partition_lib.Partition],
    nodes: Sequence[int],
) -> tuple[pipelines_lib.Pipeline, ...]:
  return moves.assign_nodes(
      predictor.profile,
      before,
      partitions,
      nodes,
      has_replicas=predictor.has_replicas,
  )


def _finish(
    predictor: predictor_lib.Predictor,
    before: Sequence[pipelines_lib.Pipeline],
    pipelines: tuple[pipelines_lib.Pipeline, ...],
    nodes: Sequence[int],
) -> Reconfiguration:
  training = {node for pipeline in pipelines for node in pipeline.nodes}
  return Reconfiguration(
      pipelines=pipelines,
      spares=tuple(node for node in nodes if node not in training),
      num_microbatches=predictor.split(pipelines),
      step_time=predictor.predict(pipelines),
      move=moves.plan_move(predictor.profile, before, pipelines, nodes),
  )
