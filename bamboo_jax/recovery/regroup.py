"""Oobleck's rules for the nodes of each pipeline after a loss (section 5).

Keep a pipeline that is large enough, else borrow nodes, else merge.
"""

from collections.abc import Sequence

from bamboo_jax import base

Groups = tuple[tuple[base.NodeId, ...], ...]


def regroup(
    groups: Sequence[tuple[base.NodeId, ...]],
    *,
    joined: Sequence[base.NodeId] = (),
    min_nodes: int,
    max_nodes: int,
    min_pipelines: int,
) -> Groups:
  """Returns the nodes of each pipeline by the rules of Oobleck.

  A pipeline that has lost nodes is kept if it still has `min_nodes`. Else it
  borrows, one by one, the last node of the largest pipeline. If no pipeline can
  spare one, it is merged: its nodes go to the smallest pipelines. A pipeline
  that has lost all nodes is dropped unless it is needed for `min_pipelines`.

  The paper does not say where joining nodes go. Here pipelines that are too
  small get them; if enough remain they make new pipelines; then the smallest
  pipelines grow. The rest are spares.

  Args:
    groups: Surviving nodes of each pipeline, stage by stage.
    joined: Nodes that are in no pipeline yet.
    min_nodes: Size of the smallest pipeline: n0.
    max_nodes: Size of the largest pipeline: n_max.
    min_pipelines: f + 1.

  Raises `base.InfeasibleError` if there are too few nodes for that.
  """
  num_nodes = sum(map(len, groups)) + len(joined)
  needed = min_pipelines * min_nodes
  if num_nodes < needed:
    raise base.InfeasibleError(
        f"{num_nodes} nodes are too few: {min_pipelines} pipelines of at least "
        f"{min_nodes} nodes need {needed}, {needed - num_nodes} more."
    )
  left = [list(group) for group in groups if group]
  left += [[] for _ in range(min_pipelines - len(left))]
  waiting = list(joined)
  while short := [group for group in left if len(group) < min_nodes]:
    # The one that lacks fewest.
    borrower, largest = max(short, key=len), max(left, key=len)
    if waiting:
      borrower.append(waiting.pop(0))
    elif len(largest) > min_nodes:
      borrower.append(largest.pop())
    else:
      # None is above `min_nodes`, one is below, and there are `needed` nodes,
      # so there are more than `min_pipelines`, and one can go.
      merged = min(short, key=len)
      left = [group for group in left if group is not merged]
      waiting += merged
  while len(waiting) >= min_nodes:
    left.append(waiting[:min_nodes])
    del waiting[:min_nodes]
  while waiting and len(smallest := min(left, key=len)) < max_nodes:
    smallest.append(waiting.pop(0))
  return tuple(map(tuple, left))
