"""Layouts of a cluster: the nodes of each stage, and their shares.

Each pipeline has its own partition. So a layout divides layers in two ways:

  stage    of a pipeline: the layers of one place. Decisions, places of faults
           and predictions are by stage.
  segment  a range of layers that no partition of the run cuts: it has one owner
           in each pipeline. Copies, holdings and the instructions of rows
           are by segment.

  layers      0 1 2 | 3 4 | 5 | 6 7 8      segments of the whole run
  pipeline 0  a       b         c          3 stages
  pipeline 1  d             e              2 stages: d owns segments 0, 1 and 2

A node may own several segments, as it owns several stages after a failover:
links join the owners of adjacent segments, and a segment's gradients are summed
over its owners in all pipelines, in the order of the shares. If all pipelines
have one partition, its stages are the segments. `StepPlans` plans the rows of a
step for a layout.
"""

from collections.abc import Collection, Mapping, Sequence
import dataclasses
import functools
from typing import NamedTuple

from bamboo_jax import base
from bamboo_jax.base import types
from bamboo_jax.plan import (
    partition as partition_lib,
    pipelines as pipelines_lib,
    planner as plan_lib,
)
from bamboo_jax.schedule import (
    failover,
    holdings as holdings_lib,
    lines as lines_lib,
    redundancy,
    timeline as timeline_lib,
)

Shares = tuple[tuple[base.ShareId, ...], ...]  # Shares of each pipeline.
# By pipeline with shares, or one if pipelines have nodes in common.
Timelines = Sequence[timeline_lib.Timeline]


class Way(NamedTuple):
  """A path of shares of a pipeline: the node that computes each segment."""

  pipeline: int
  owners: tuple[base.NodeId, ...]
  shares: tuple[base.ShareId, ...]


@dataclasses.dataclass(frozen=True)
class Layout:
  """The pipelines, and the shares of the batch that each computes.

  Attributes:
    shares: Shares of each pipeline; none of one that only keeps state because
      it has lost a stage. Shares of no pipeline are not computed.
    segments: First layer of each segment, then the number of layers; the same
      throughout a run.
    detours: For each share that does not pass through the owners of its
      pipeline only: the node that computes each segment.
    spares: Live nodes without a stage, in the order of their use. A run takes them
      from its view for each decision, and `leaving` too.
    leaving: Live nodes whose preemption has been announced.
  """

  pipelines: tuple[pipelines_lib.Pipeline, ...] = ()
  shares: Shares = ()
  segments: tuple[int, ...] = ()
  detours: Mapping[base.ShareId, tuple[base.NodeId, ...]] = dataclasses.field(default_factory=dict)
  spares: tuple[base.NodeId, ...] = ()
  leaving: frozenset[base.NodeId] = frozenset()

  @functools.cached_property
  def roles(self) -> tuple[failover.Roles, ...]:
    """Owner and shadow of each segment, by pipeline.

    A vacant stage has the owner of another pipeline, if there is one.
    """
    split = partition_lib.Partition
    roles = [p.by_segment(split(self.segments)) for p in self.pipelines]
    vacant = [
        {i for s in p.vacant for i in self.segments_of(types.Place(n, s))}
        for n, p in enumerate(self.pipelines)
    ]
    stand_in = {
        segment: owner
        for r, gone in reversed([*zip(roles, vacant, strict=True)])
        for segment, owner in enumerate(r.owners)
        if segment not in gone
    }
    return tuple(
        failover.Roles(
            tuple(stand_in.get(i, n) if i in gone else n for i, n in enumerate(r.owners)), r.shadows
        )
        for r, gone in zip(roles, vacant, strict=True)
    )

  @functools.cached_property
  def ways(self) -> tuple[Way, ...]:
    """The ways of all shares, by pipeline; detours are ways of their own."""
    found: dict[tuple[int, tuple[base.NodeId, ...]], list[base.ShareId]] = {}
    for pipeline, (r, own) in enumerate(zip(self.roles, self.shares, strict=True)):
      for share in own:
        owners = tuple(self.detours.get(share, r.owners))
        found.setdefault((pipeline, owners), []).append(share)
    return tuple(
        Way(pipeline, owners, tuple(shares)) for (pipeline, owners), shares in found.items()
    )

  @property
  def lines_of_ways(self) -> list[tuple[tuple[base.NodeId, ...], tuple[base.ShareId, ...]]]:
    """Owners by segment, and their shares, of each way; as `Engine.lines`."""
    return [way[1:] for way in self.ways]

  @functools.cached_property
  def is_joint(self) -> bool:
    """Whether ways have nodes in common."""
    rows = [{*way.owners} for way in self.ways]
    return bool(self.detours) or sum(map(len, rows)) > len(set().union(*rows))

  def lines(self, plan: plan_lib.Plan) -> list[lines_lib.Line]:
    """Returns the lines of a whole step, see `schedule.lines`."""
    return plan.lines(self.ways, [p.partition for p in self.pipelines])

  @property
  def nodes(self) -> frozenset[base.NodeId]:
    """The nodes that own a stage."""
    return frozenset(node for p in self.pipelines for node in p.nodes)

  @property
  def live(self) -> tuple[base.NodeId, ...]:
    """All live nodes: pipeline by pipeline, then the spares."""
    return (*(n for p in self.pipelines for n in p.nodes), *self.spares)

  @functools.cached_property
  def owners(self) -> dict[types.Place, base.NodeId | None]:
    """The owner of each place; None of a vacant one."""
    return {
        types.Place(i, stage): None if stage in p.vacant else node
        for i, p in enumerate(self.pipelines)
        for stage, node in base.by_stage(p.roles.owners)
    }

  @property
  def computing(self) -> list[list[base.NodeId]]:
    """As `owners`; of a vacant stage the node that computes its first segment."""
    rows = zip(self.pipelines, self.roles, strict=True)
    return [
        [r.owners[self.segments.index(first)] for first in p.partition.bounds[:-1]] for p, r in rows
    ]

  def keep_detours(self, before: "Layout", lost: Collection[base.NodeId]) -> "Layout":
    """Returns this layout with the detours of `before`.

    Owners replace the `lost` nodes in them.
    """
    owners = {
        share: r.owners for r, own in zip(self.roles, self.shares, strict=True) for share in own
    }
    detours = {
        share: tuple(
            owner if node in lost else node for node, owner in zip(row, owners[share], strict=True)
        )
        for share, row in before.detours.items()
    }
    left = {s: row for s, row in detours.items() if row != owners[s]}
    return dataclasses.replace(self, detours=left)

  def without_numbers(self, numbers: Collection[base.NodeId]) -> "Layout":
    """Returns this layout with its nodes of `numbers` renamed, so that live nodes may have these.

    The new names are below 0: no node has them. The nodes must be dead, and in no detour.
    """
    every = {n for p in self.pipelines for n in p.roles.owners}
    names = {n: base.NodeId(-1 - n if n in numbers else n) for n in every}
    return dataclasses.replace(self, pipelines=tuple(p.renumbered(names) for p in self.pipelines))

  def find_takers(self, before: "Layout") -> list[tuple[base.NodeId, types.Place]]:
    """Returns nodes and the places that they own now but not in `before`."""
    owners = self.owners.items()
    return [(n, at) for at, n in owners if n is not None and before.owners.get(at) != n]

  def places_of(self, nodes: Collection[base.NodeId]) -> tuple[types.Place, ...]:
    """Returns the places that `nodes` own."""
    return tuple(place for place, owner in self.owners.items() if owner in nodes)

  def segments_of(self, place: types.Place) -> Sequence[base.StageId]:
    """Returns the segments of a place; none if it is not in this layout."""
    if place.pipeline >= len(self.pipelines):
      return ()
    bounds = self.pipelines[place.pipeline].partition.bounds
    ends = bounds[place.stage : place.stage + 2]
    return base.stages(*map(self.segments.index, ends)) if ends[1:] else ()

  @functools.cached_property
  def copies(self) -> frozenset[tuple[base.NodeId, base.StageId]]:
    """Node and segment of every copy of state; dead nodes included."""
    return frozenset(
        (node, segment)
        for r in self.roles
        for segment, node in (*base.by_stage(r.owners), *r.shadows.items())
    )

  @property
  def held(self) -> dict[base.NodeId, frozenset[base.StageId]]:
    """The segments of `copies`, by node."""
    found: dict[base.NodeId, set[base.StageId]] = {}
    for node, segment in self.copies:
      found.setdefault(node, set()).add(segment)
    return {node: frozenset(segments) for node, segments in sorted(found.items())}


class StepPlans:
  """Plans steps; caches the whole step of the last layout.

  Args:
    fills: Whether redundant forward passes fill waits as these occur; otherwise
      the same rule is played ahead.
  """

  def __init__(self, plan: plan_lib.Plan, *, fills: bool = False) -> None:
    self._planned, self._fills = plan, fills
    self._last: tuple[Layout, Timelines, redundancy.StepFilling | None] = Layout(), (), None

  def whole(self, layout: Layout) -> tuple[Timelines, redundancy.StepFilling | None]:
    """Returns the timelines of a whole step, and how its waits are filled, if they are."""
    if layout == self._last[0]:
      return self._last[1:]
    lines, timelines, filling = layout.lines(self._planned), list[timeline_lib.Timeline](), None
    if layout.is_joint:
      timelines = [self._planned.play(lines)]
    else:
      plans = [self._planned.whole(line, layout.roles[line.pipeline].shadows) for line in lines]
      timelines = [plan.bare if self._fills else plan.timeline for plan in plans]
      if self._fills and any(plan.rules for plan in plans):
        filling = redundancy.StepFilling(plans)
    self._last = layout, timelines, filling
    return timelines, filling

  def rest(
      self, layout: Layout, holdings: Mapping[base.NodeId, holdings_lib.Holdings]
  ) -> Timelines:
    """Returns the timelines of the rest of a step after a death.

    `holdings` is the data of the step that each node holds. Raises
    `base.InfeasibleError` if a needed value has no copy.
    """
    lines = layout.lines(self._planned)
    groups = [lines] if layout.is_joint else [[line] for line in lines]
    return [self._planned.play(group, holdings) for group in groups]
