"""Shapes of pipelines for a number of nodes, and how they follow others.

All are made from templates, the best partition for each number of nodes:

  one depth            Bamboo's (NSDI'23): as many as there are nodes for; others are spares
  several, not mixed   Varuna's (EuroSys'22): the fastest number and depth, at each start
  several, mixed       Oobleck's (SOSP'23): a cover, so that no node idles

A cover has at least f + 1 pipelines, so every layer has that many owners. Of all
covers, which are enumerated, the one with the shortest predicted step is taken. If
there were pipelines before, nodes get the places that need the fewest copies
(`moves`).

Oobleck (section 4) plans pipelines in advance, one for each number of nodes from n0, the
least that fits in memory, to n_max. If n_max is at least n0 + ceil((n0 - 1) / (f + 1)),
then any number of nodes from (f + 1) n0 up is covered by at least f + 1 pipelines without
an idle node: x pipelines cover all numbers from x n0 to x n_max, and the range of x + 1
pipelines adjoins it. With f + 1 pipelines each layer has f + 1 owners, so any f nodes may
be lost.
"""

from collections.abc import Callable, Iterator, Sequence
import dataclasses
import functools
import itertools
import math
from typing import NamedTuple, Protocol

import numpy as np

from bamboo_jax import base, config
from bamboo_jax.plan import (
    batch_split,
    cost_model,
    memory as memory_lib,
    partition as partition_lib,
    pipelines as pipelines_lib,
    predictor as predictor_lib,
)
from bamboo_jax.recovery import moves, placement
from bamboo_jax.schedule import lines as lines_lib

Pipeline = pipelines_lib.Pipeline
Nodes = Sequence[base.NodeId]
Partitions = tuple[partition_lib.Partition, ...]
Pipelines = tuple[Pipeline, ...]
Depths = tuple[int, ...]  # Of the pipelines of a cover, growing.
Groups = tuple[tuple[base.NodeId, ...], ...]

GRID_DEPTHS = (0.5, 0.75, 1.0, 1.25, 1.5)  # Multiples of the number of stages.
_DEFAULTS = config.RecoverySection()
_MAX_TIES = 64  # Most equally good covers that are kept.


class Shapes(Protocol):
  """Decides number and partitions of pipelines; pure."""

  @property
  def has_replicas(self) -> bool:
    """Whether the stages of new pipelines have shadows."""

  @property
  def smallest(self) -> partition_lib.Partition:
    """The partition of the pipeline with the fewest nodes."""

  def partitions(self, num_nodes: int) -> Partitions:
    """Returns the partition of each new pipeline.

    Raises `base.InfeasibleError` if there are too few nodes.
    """

  def adapt(self, pipelines: Sequence[Pipeline], nodes: Nodes) -> Pipelines:
    """Returns pipelines of some of `nodes` that replace `pipelines`.

    Nodes of `pipelines` that are not in `nodes` are lost; spares are used in
    the order of `nodes`.

    Raises:
      base.InfeasibleError: There are too few nodes, or none has a copy of some
        layer.
    """


@dataclasses.dataclass(frozen=True)
class Templates:
  """Pipelines of given depths; a `Shapes`.

  Attributes:
    depths: The partition of each depth. If mixed, those of consecutive depths.
    predictor: Predicts steps; it limits the number of pipelines.
    options: With one depth, complete pipelines are changed only if one of Bamboo's
      triggers fires. With mixed ones, `num_failures` is f, and `method` how pipelines
      replace others: by Oobleck's "rules" (section 5: keep, borrow, merge), or by
      "replanning": among the fastest covers the one that moves the fewest bytes,
      then nodes.
    mixes: Whether pipelines may have different depths.
    uses_all: Whether as many nodes as possible are used, as in Bamboo and Oobleck, even
      if fewer were faster; "rules" always do.
    degrades: Whether nodes, or shares, that are too few for f + 1 pipelines make fewer.
    max_pipelines: Largest number of pipelines; None: no other limit.
  """

  depths: Partitions
  predictor: predictor_lib.Predictor
  options: config.RecoverySection = _DEFAULTS
  mixes: bool = False
  uses_all: bool = True
  degrades: bool = False
  max_pipelines: int | None = None

  @property
  def has_replicas(self) -> bool:
    """Whether the predictor's steps have redundancy."""
    return self.predictor.has_replicas

  @functools.cached_property
  def smallest(self) -> partition_lib.Partition:
    """The template of n0 nodes."""
    return min(self.depths, key=lambda p: p.num_stages)

  def partitions(self, num_nodes: int) -> Partitions:
    """Returns the best cover of the nodes."""
    return self._of(self.covers(num_nodes)[0])

  def adapt(self, pipelines: Sequence[Pipeline], nodes: Nodes) -> Pipelines:
    """Returns `pipelines` themselves if no trigger fires; see `Shapes`.

    But nodes of several regions may change places.
    """
    kept = tuple(p.partition for p in pipelines)
    is_still = len(self.depths) == 1 and not fires(
        self.options, pipelines, nodes, most=len(self.covers(len(nodes))[0])
    )
    may_move = self._are_apart(nodes) and sum(p.num_stages for p in kept) <= len(nodes)
    if is_still and not may_move:
      return tuple(pipelines)
    if is_still:  # Nodes may still change places, so that less crosses.
      plans = [[(kept, tuple(nodes))]]
    elif self.mixes and self.options.method == "rules":
      plans = [[(self._of((len(g),)), g) for g in self._groups(pipelines, nodes)]]
    else:
      plans = [[(self._of(cover), tuple(nodes))] for cover in self.covers(len(nodes))]
    predictor, profile = self.predictor, self.predictor.profile
    if lost := moves.lost_layers(pipelines, nodes):
      raise base.InfeasibleError(
          f"No live node has a copy of layer {profile.layers[lost[0]].name}."
      )
    assign = functools.partial(
        moves.assign_nodes, profile, pipelines, has_replicas=self.has_replicas
    )
    choices = []
    for plan in plans:
      choices.append(tuple(p for parts, group in plan for p in assign(parts, group)))
      if len(plan) == 1 and self._are_apart(nodes):  # Also each way to divide places.
        ((parts, group),) = plan
        own, num_places = np.array(profile.regions.names(group)), sum(p.num_stages for p in parts)
        for wanted in self._divide(parts, group):
          may_be = own[:, None] == np.array(wanted[:num_places])
          choices.append(assign(parts, group, may_be=may_be))
    if len(choices) == 1:
      return choices[0]

    def cost(after: Pipelines) -> tuple[float, int, int]:
      """Step time in ms, bytes and nodes moved."""
      copies = moves.plan_layer_copies(profile, pipelines, after, nodes)
      num_bytes = sum(copy.num_bytes for copy in copies)
      return predictor.predict(after).total_ms, num_bytes, moves.count_moved(pipelines, after)

    return min(choices, key=cost)

  def arrange(self, partitions: Partitions, nodes: Nodes, zones: placement.Zones) -> Nodes:
    """Returns the node of each new place, then the rest; see `placement.arrange`.

    Of several ways to divide places among regions it is the one with the shortest step.
    """
    arrange = functools.partial(
        placement.arrange, partitions, nodes, zones, has_replicas=self.has_replicas
    )
    if not self._are_apart(nodes):
      return arrange()
    make = functools.partial(placement.make_pipelines, partitions, has_replicas=self.has_replicas)
    return min(
        (arrange(regions=regions) for regions in self._divide(partitions, nodes)),
        key=lambda order: self.predictor.predict(make(order)).total_ms,
    )

  def _are_apart(self, nodes: Nodes) -> bool:
    """Returns whether nodes are in several regions."""
    return self.predictor.profile.regions.are_several(nodes)

  def _divide(self, partitions: Partitions, nodes: Nodes) -> list[tuple[str, ...]]:
    """Returns regions of new places, then of spares, see `placement.divide`."""
    predictor = self.predictor
    num_places = sum(p.num_stages for p in partitions)
    new = placement.make_pipelines(partitions, base.nodes(num_places), self.has_replicas)
    counts = batch_split.split_evenly(predictor.num_microbatches, len(partitions))
    traffic = predictor.find_traffic(partitions, counts, [p.roles for p in new])
    # A newcomer's region is not known before it is a member.
    of_nodes = predictor.profile.regions.names(nodes)
    return placement.divide(partitions, of_nodes, traffic.total)

  @functools.cached_property
  def _of_depth(self) -> dict[int, partition_lib.Partition]:
    return {p.num_stages: p for p in self.depths}

  def _of(self, cover: Depths) -> Partitions:
    return tuple(self._of_depth[depth] for depth in cover)

  @functools.cached_property
  def covers(self) -> Callable[[int], tuple[Depths, ...]]:
    """Returns the covers of some nodes with the shortest step, all equally good.

    Raises:
      base.InfeasibleError: There are too few nodes for f + 1 pipelines, or fewer
        microbatches than that.
    """
    return functools.cache(self._find_covers)  # Of this instance only.

  def _find_covers(self, num_nodes: int) -> tuple[Depths, ...]:
    fewest, least = self._fewest(num_nodes), self.smallest.num_stages
    if num_nodes < least and fewest == 1:
      raise base.InfeasibleError(f"Too few nodes for a pipeline of {least}: {num_nodes}.")
    if num_nodes < fewest * least:
      raise base.InfeasibleError(
          f"Too few nodes, {num_nodes}: {fewest} pipelines of at least {least} nodes "
          f"need {fewest * least}, {fewest * least - num_nodes} more."
      )
    most = min(self.predictor.most_pipelines, self.max_pipelines or num_nodes)
    if fewest > most:
      raise base.InfeasibleError(f"{fewest} pipelines are too many for {most} microbatches.")
    tried = [*(self._mixed if self.mixes else self._alike)(num_nodes, fewest, most)]
    if len(tried) == 1:
      return tuple(tried)
    predictor, best_ms, found = self.predictor, math.inf, []
    for cover in tried:
      partitions = self._of(cover)
      paces = [predictor.pace(p) for p in partitions]
      # A bound, but for an error of rounding: none does more than its pace allows.
      rate = sum(1.0 / pace.least_ms for pace in paces)
      if predictor.num_microbatches / rate * (1 - 1e-9) <= best_ms:
        step_ms = predictor.step_time(partitions, predictor.deal(paces)).total_ms
        if step_ms < best_ms:
          best_ms, found = step_ms, [cover]
        elif step_ms == best_ms and self.mixes and sum(cover) == sum(found[0]):
          found.append(cover)
    return tuple(found[:_MAX_TIES])

  def _fewest(self, num_nodes: int) -> int:
    """Returns the least number of pipelines: f + 1, if they may be mixed."""
    wanted = self.options.num_failures + 1 if self.mixes else 1
    most = min(num_nodes // self.smallest.num_stages, self.predictor.most_pipelines)
    return max(1, min(wanted, most)) if self.degrades else wanted

  def _alike(self, num_nodes: int, fewest: int, most: int) -> Iterator[Depths]:
    """Yields pipelines of one depth, the deepest first, as it is taken of equally fast ones."""
    total = self.predictor.most_pipelines
    for depth in sorted(self._of_depth, reverse=True):
      if count := min(num_nodes // depth, most):
        # Other numbers give the busiest pipeline as many microbatches as a smaller one.
        busiest = {-(-total // n) for n in range(1, count + 1)}
        counts = [count] if self.uses_all else [-(-total // n) for n in busiest]
        yield from ((depth,) * n for n in counts)

  def _mixed(self, num_nodes: int, fewest: int, most: int) -> Iterator[Depths]:
    """Yields all covers, of fewer nodes first: more are not taken if they are no faster."""
    least, largest = self.smallest.num_stages, max(self._of_depth)
    used = min(num_nodes, largest * min(num_nodes // least, most))
    wanted = (self.options.num_failures + 1) * least
    uses_all = self.uses_all or self.options.method == "rules"
    for total in [used] if uses_all else range(min(wanted, used), used + 1):
      for number in range(max(fewest, -(-total // largest)), min(most, total // least) + 1):
        yield from _divide(total, number, least, largest)

  def _groups(self, pipelines: Sequence[Pipeline], nodes: Nodes) -> Groups:
    alive, most = {*nodes}, self.predictor.most_pipelines
    left = [tuple(n for n in p.nodes if n in alive) for p in pipelines]
    training = {node for group in left for node in group}
    groups = regroup(
        left,
        joined=tuple(node for node in nodes if node not in training),
        min_nodes=self.smallest.num_stages,
        max_nodes=max(self._of_depth),
        min_pipelines=self._fewest(len(nodes)),
        max_pipelines=most,
    )
    if len(groups) > most:
      raise base.InfeasibleError(f"{len(groups)} pipelines are too many for {most} microbatches.")
    return groups


class Template(NamedTuple):
  """A pipeline of one stage per node, and the memory of each stage."""

  partition: partition_lib.Partition
  memory_bytes: tuple[int, ...]


def needed_max_nodes(min_nodes: int, *, num_failures: int) -> int:
  """Returns the least n_max with which no node idles (Oobleck, section 4)."""
  return min_nodes + -(-(min_nodes - 1) // (num_failures + 1))  # Rounded up.


def make_templates(
    costs: Sequence[cost_model.LayerCost],
    *,
    num_failures: int,
    memory_limit_bytes: int | None = None,
    min_nodes: int = 1,
    max_nodes: int | None = None,
    num_microbatches: int | None = None,
    upkeep: memory_lib.Upkeep = memory_lib.OVERLAPPED,
    ties: Sequence[cost_model.TieCost] = (),
    cuts: Sequence[int] | None = None,
) -> tuple[Template, ...]:
  """Returns the templates for all numbers of nodes that pipelines may have, growing.

  Each is the exact optimum of `partition.find_split`, whose other arguments
  are passed on.

  Args:
    num_failures: f: number of nodes that may be lost at once.
    min_nodes: Least number of nodes of a pipeline, even if fewer would fit.
    max_nodes: Nodes of the largest pipeline, if that is more than the least number with
      which all nodes can be used; None: about twice those of the smallest. More give
      more choice.
    num_microbatches: Most microbatches that a pipeline gets in a step, which
      bounds its residuals; None: no bound.

  Raises:
    ValueError: `min_nodes` is out of range.
    base.InfeasibleError: A needed number of nodes does not fit in memory, or is
      above the possible number of stages. The message says which, and by how much.
  """
  cuts = range(1, len(costs)) if cuts is None else cuts
  most_nodes = 1 + len(cuts)
  if not 1 <= min_nodes <= most_nodes:
    raise ValueError(
        f"min_nodes must be from 1 to {most_nodes} (the number of layers, or "
        f"of groups that stay together), got {min_nodes}."
    )

  def model(num_nodes: int) -> memory_lib.MemoryModel:
    # Never more in flight than stages: that many microbatches are no bound.
    in_flight = lines_lib.in_flight_bounds(num_nodes, num_microbatches or num_nodes)
    return memory_lib.MemoryModel(costs, in_flight=in_flight, upkeep=upkeep, ties=ties, cuts=cuts)

  def split(num_nodes: int) -> Template:
    memory = model(num_nodes)
    partition = partition_lib.find_split(memory, memory_limit_bytes)
    ends = enumerate(itertools.pairwise(partition.bounds))
    return Template(
        partition, tuple(memory.owner(base.StageId(s), *own).total_bytes for s, own in ends)
    )

  refusals = []
  for least in range(min_nodes, most_nodes + 1):
    try:
      first = split(least)
      break
    except base.InfeasibleError as error:
      refusals.append((partition_lib.least_bytes(model(least)), least, error))
  else:
    # Errors have no order.
    _, num_nodes, error = min(refusals, key=lambda r: r[:2])
    raise base.InfeasibleError(
        f"No pipeline of {min_nodes} to {most_nodes} nodes fits. The one "
        f"of {num_nodes} nodes misses by the least: {error}"
    )
  wanted = 2 * least - 1 if max_nodes is None else max_nodes
  last = max(needed_max_nodes(least, num_failures=num_failures), min(wanted, most_nodes))
  if last > most_nodes:
    raise base.InfeasibleError(
        f"Pipelines of {last} nodes are needed (the smallest has "
        f"{least}, num_failures={num_failures}), but there are only "
        f"{most_nodes} layers, or groups that stay together, and each node "
        "needs one."
    )
  return (first, *map(split, range(least + 1, last + 1)))


def _divide(total: int, number: int, least: int, largest: int) -> Iterator[Depths]:
  """Yields all growing sequences of `number` depths from `least` to `largest`, by their sum."""
  if number == 1:
    if least <= total <= largest:
      yield (total,)
    return
  # With less here, the rest could not have all nodes; and the rest are no smaller.
  for first in range(max(least, total - (number - 1) * largest), total // number + 1):
    for rest in _divide(total - first, number - 1, first, largest):
      yield (first, *rest)


def fires(
    options: config.RecoverySection, pipelines: Sequence[Pipeline], nodes: Nodes, *, most: int
) -> bool:
  """Returns whether new pipelines are desirable, by the triggers that are switched on.

  Bamboo (NSDI'23) reconfigures if spares can relieve all nodes with two stages, if the
  number of such nodes makes another loss likely to be fatal, or if there are nodes for
  one more pipeline. These are the rules of its public simulator. Always if a node is
  lost. `decide` checks whether new pipelines pay.

  Args:
    options: `refill`, `max_doubled` and `grow` count.
    most: Number of pipelines that all nodes suffice for.
  """
  training = {node for p in pipelines for node in p.nodes}
  num_training = sum(len(p.nodes) for p in pipelines)
  num_doubled = sum(p.partition.num_stages - len(p.nodes) for p in pipelines)
  return (
      not training <= {*nodes}
      or (options.refill and 0 < num_doubled <= len(nodes) - len(training))
      or 2 * num_doubled > options.max_doubled * num_training
      or (options.grow and most > len(pipelines))
  )


def regroup(
    groups: Sequence[tuple[base.NodeId, ...]],
    *,
    joined: Sequence[base.NodeId] = (),
    min_nodes: int,
    max_nodes: int,
    min_pipelines: int,
    max_pipelines: int,
) -> Groups:
  """Returns the nodes of each pipeline by the rules of Oobleck (section 5).

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
    max_pipelines: Joining nodes make no more.

  Raises `base.InfeasibleError` if there are too few nodes for that.
  """
  num_nodes = sum(map(len, groups)) + len(joined)
  needed = min_pipelines * min_nodes
  if num_nodes < needed:
    raise base.InfeasibleError(
        f"Too few nodes, {num_nodes}: {min_pipelines} pipelines of at least "
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
  while len(waiting) >= min_nodes and len(left) < max_pipelines:
    left.append(waiting[:min_nodes])
    del waiting[:min_nodes]
  while waiting and len(smallest := min(left, key=len)) < max_nodes:
    smallest.append(waiting.pop(0))
  return tuple(map(tuple, left))
