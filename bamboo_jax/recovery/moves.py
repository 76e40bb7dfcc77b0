"""Moves state (parameters and optimizer slots) when pipelines change.

A node needs the layers that it owns or shadows, and copies the missing ones
from live nodes. Places are assigned to nodes by a linear assignment problem,
which minimises first the bytes to copy, then the number of nodes that get other
layers or another pipeline. Each new pipeline follows at most one old one; these
pairs are found first, by another assignment problem.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
import functools
import itertools
from typing import Any, NamedTuple

import numpy as np

from bamboo_jax import base
from bamboo_jax.plan import cost_model, partition as partition_lib, pipelines as pipelines_lib
from bamboo_jax.recovery import placement as placement_lib
from bamboo_jax.schedule import costs as costs_lib

Pipeline = pipelines_lib.Pipeline
Partition = partition_lib.Partition
Pipelines = Sequence[Pipeline]
Layers = frozenset[int]

_NONE: Layers = frozenset()


class StateCopy(NamedTuple):
  """State of parts `first` to `last - 1` to copy from one node to another."""

  first: int
  last: int
  source: base.NodeId
  destination: base.NodeId
  num_bytes: int


def owned_layers(pipelines: Pipelines, *, with_shadows: bool = False) -> dict[base.NodeId, Layers]:
  """Returns the layers of each node that owns any."""
  found: dict[base.NodeId, Layers] = {}
  for pipeline in pipelines:
    owners, shadows = pipeline.roles.owners, pipeline.roles.shadows.items()
    of_stages = [(s, n) for s, n in base.by_stage(owners) if s not in pipeline.vacant]
    for stage, node in (*of_stages, *(shadows if with_shadows else ())):
      layers = pipeline.partition.sets[stage]
      found[node] = found[node] | layers if node in found else layers
  return found


# Returns the layers whose state each node has, as owner or shadow.
held_layers = functools.partial(owned_layers, with_shadows=True)


def lost_layers(pipelines: Pipelines, nodes: Collection[base.NodeId]) -> tuple[int, ...]:
  """Returns the layers without a copy on any of `nodes`, in model order."""
  held = held_layers(pipelines)
  alive = _NONE.union(*(held.get(node, _NONE) for node in nodes))
  num_layers = pipelines[0].partition.num_layers
  return tuple(layer for layer in range(num_layers) if layer not in alive)


def plan_copies(
    held: Mapping[base.NodeId, Collection[int]],
    needed: Mapping[base.NodeId, Collection[int]],
    nodes: Collection[base.NodeId],
    part_bytes: Sequence[int],
    regions: costs_lib.Regions,
) -> list[StateCopy]:
  """Returns the copies of parts that nodes need but do not hold, by destination.

  Parts are layers, or segments of a layout. Live `nodes` are the sources. Consecutive
  parts with the same holders are one copy, from a holder in the same region if there is
  one, and of these from the one with the fewest bytes to send so far.

  Raises `base.InfeasibleError` if no live node has a part that must be copied.
  """
  # Sorted, so that ties do not depend on the order of a set.
  sent_bytes = {node: 0 for node in sorted(nodes) if node in held}
  holders: list[list[base.NodeId]] = [[] for _ in part_bytes]
  for node in sent_bytes:
    for part in held[node]:
      holders[part].append(node)
  copies = []
  for node, parts in sorted(needed.items()):
    missing = sorted({*parts}.difference(held.get(node, ())))
    # Consecutive parts differ from their positions by one number.
    alike = itertools.groupby(enumerate(missing), lambda p: (p[1] - p[0], holders[p[1]]))
    for _, group in alike:
      run = [part for _, part in group]
      if not holders[run[0]]:
        raise base.InfeasibleError(f"No live node has a copy of part {run[0]}.")
      num_bytes = sum(part_bytes[run[0] : run[-1] + 1])
      is_far = lambda n, to=node: regions.are_several((n, to))
      source = min(holders[run[0]], key=lambda n: (is_far(n), sent_bytes[n]))
      sent_bytes[source] += num_bytes
      copies.append(StateCopy(run[0], run[-1] + 1, source, node, num_bytes))
  return copies


def plan_layer_copies(
    profile: cost_model.Profile, before: Pipelines, after: Pipelines, nodes: Collection[base.NodeId]
) -> list[StateCopy]:
  """Returns the copies of layers that `after` needs; see `plan_copies`."""
  held, needed = held_layers(before), held_layers(after)
  return plan_copies(held, needed, nodes, _state_bytes(profile), profile.regions)


def copy_secs(
    profile: cost_model.Profile,
    before: Pipelines,
    after: Pipelines,
    nodes: Collection[base.NodeId] | None = None,
) -> float:
  """Returns the time of all copies; 0 if there was no pipeline before.

  A node makes its copies one after the other; those from one region to another share a
  link. Live `nodes` are by default those that train before or after. Raises as
  `plan_copies`.
  """
  if not before:
    return 0.0
  if nodes is None:
    nodes = {node for p in (*before, *after) for node in p.nodes}
  busy_ms: dict[base.NodeId, float] = {}
  shared_ms: dict[tuple[str, ...], float] = {}  # By the regions of source and destination.
  regions = profile.regions
  for copy in plan_layer_copies(profile, before, after, nodes):
    copy_ms = profile.transfer_ms(copy.num_bytes)
    ends = copy.source, copy.destination
    for node in ends:  # A copy occupies both ends.
      busy_ms[node] = busy_ms.get(node, 0.0) + copy_ms
    if regions.are_several(ends):
      link = tuple(regions.names(ends))
      shared_ms[link] = shared_ms.get(link, 0.0) + regions.transfer_ms(copy.num_bytes)
  return max((*busy_ms.values(), *shared_ms.values()), default=0.0) / 1e3


def assign_nodes(
    profile: cost_model.Profile,
    before: Pipelines,
    partitions: Sequence[Partition],
    nodes: Sequence[base.NodeId],
    *,
    has_replicas: bool,
    may_be: np.ndarray | None = None,
) -> tuple[Pipeline, ...]:
  """Returns pipelines of `nodes` that need the fewest bytes of copies.

  Of several such assignments it is one that moves few nodes, though perhaps not
  the fewest. There must be a node for each stage of `partitions`.

  Args:
    may_be: Whether each node (row) may be at each place (column); None: all may.
  """
  num_places = sum(p.num_stages for p in partitions)
  places = placement_lib.make_pipelines(partitions, base.nodes(num_places), has_replicas)
  # Whole numbers below 2**53, which floats represent exactly.
  weights = np.array(_state_bytes(profile), float)
  copied_bytes = _count_missing(held_layers(before), nodes, held_layers(places), weights)
  is_other = 0 < _count_missing(
      owned_layers(before), nodes, owned_layers(places), np.ones_like(weights)
  )
  # Bytes first: one byte outweighs all nodes together.
  unit = len(nodes) + 1
  follows = _match(before, places, nodes, copied_bytes * unit + is_other)
  leaves = {old: np.array([node not in old for node in nodes]) for old in {*follows}}
  # Still at most 1 for each pair, as `unit` assumes.
  is_other |= np.array([leaves[old] for old in follows]).T
  cost = copied_bytes * unit + is_other
  rows, columns = load_solver()(cost if may_be is None else np.where(may_be, cost, np.inf))
  node_at = {c: nodes[r] for r, c in zip(rows, columns, strict=True)}
  return placement_lib.make_pipelines(
      partitions, [node_at[place] for place in range(num_places)], has_replicas
  )


def load_solver() -> Callable[..., Any]:
  """Returns SciPy's solver of assignment problems.

  Imported late, because it takes half as long as the import of JAX: in the
  background of training, before it may be needed.
  """
  from scipy import optimize

  solver: Callable[..., Any] = optimize.linear_sum_assignment
  return solver


def _match(
    before: Pipelines, places: Pipelines, nodes: Sequence[base.NodeId], cost: np.ndarray
) -> list[frozenset[base.NodeId]]:
  """Returns, by place, the nodes of the old pipeline that its pipeline follows.

  Pairs are matched by the cost of the new pipeline made of the old one's nodes.
  """
  worst = cost.max(initial=0, axis=0)
  pair_cost = np.zeros((len(before), len(places)))
  row_of, solve = {node: r for r, node in enumerate(nodes)}, load_solver()
  rows = [[row_of[n] for n in old.nodes if n in row_of] for old in before]
  twins: dict[bytes, int] = {}  # New pipelines of one template cost the same.
  for j, new in enumerate(places):
    columns = list(new.nodes)
    mine = cost[:, columns]
    if (twin := twins.setdefault(mine.tobytes(), j)) < j:
      pair_cost[:, j] = pair_cost[:, twin]
      continue
    # Take the places that the members are too few for.
    helpers = np.tile(worst[columns], (len(columns), 1))
    for i, members in enumerate(rows):
      block = np.concatenate([mine[members], helpers])
      pair_cost[i, j] = block[solve(block)].sum()
  olds, news = solve(pair_cost)
  old_of = dict(zip(news, olds, strict=True))
  return [
      # Some follow none.
      frozenset(before[old_of[j]].nodes) if j in old_of else frozenset()
      for j, new in enumerate(places)
      for _ in new.nodes
  ]


def count_moved(before: Pipelines, after: Pipelines) -> int:
  """Returns how many nodes own a new layer or changed their pipeline.

  A new pipeline counts as the old one with which it has the most nodes in
  common; each old one is used once.
  """
  owned = owned_layers(before)
  common = np.array([[len({*old.nodes} & {*new.nodes}) for new in after] for old in before])
  olds, news = load_solver()(common, maximize=True)
  old_of = dict(zip(news, olds, strict=True))
  num_moved = 0
  for j, new in enumerate(after):
    stayed = before[old_of[j]].nodes if j in old_of else ()
    for node, layers in owned_layers([new]).items():
      gained = layers - owned.get(node, _NONE)
      num_moved += bool(gained) or node not in stayed
  return num_moved


def _state_bytes(profile: cost_model.Profile) -> list[int]:
  return [c.parameter_bytes + c.slot_bytes for c in profile.layers]


def _count_missing(
    have: Mapping[base.NodeId, Layers],
    nodes: Sequence[base.NodeId],
    want: Mapping[base.NodeId, Layers],
    weights: np.ndarray,
) -> np.ndarray:
  """Returns the weight that each node (row) lacks for each place (column)."""
  has = _as_rows([have.get(node, _NONE) for node in nodes], len(weights))
  # Places are numbered from 0, like nodes.
  wants = _as_rows([want[place] for place in base.nodes(len(want))], len(weights))
  missing: np.ndarray = (1.0 - has) @ (wants * weights).T
  return missing


def _as_rows(layers: Sequence[Layers], num_layers: int) -> np.ndarray:
  """Returns a row of ones and zeros per set, [len(layers), num_layers]."""
  row_of = {some: np.zeros(num_layers) for some in layers}
  for some, row in row_of.items():
    row[[*some]] = 1.0
  return np.array([row_of[some] for some in layers])
