"""Layouts of a cluster: who trains what; plain values.

Each pipeline has a partition of its own. So a layout knows layers in two ways:

  stage    of a pipeline: what one node was given. Decisions, places of faults
           and predictions go by stages.
  segment  a range of layers that no partition of the run cuts: it has one owner
           in each pipeline. Programs, state, copies, gradients and what a node
           holds go by segments, and so do the instructions of rows.

  layers      0 1 2 | 3 4 | 5 | 6 7 8      segments of the whole run
  pipeline 0  a       b         c          3 stages
  pipeline 1  d             e              2 stages: d owns segments 0, 1 and 2

A node owns several segments as after a failover it owns several stages: links
join nodes that own neighbours, whichever they are, and a segment's gradients
are summed over its owner in each pipeline, share by share in their order. With
one partition for all pipelines its stages are the segments.
"""

from collections.abc import Collection, Mapping
import dataclasses
import functools
from typing import Any

from bamboo_jax.base import types
from bamboo_jax.plan import partition as partition_lib
from bamboo_jax.plan import pipelines as pipelines_lib
from bamboo_jax.plan import rows as rows_lib
from bamboo_jax.schedule import failover
from bamboo_jax.schedule import lines as lines_lib

Shares = tuple[tuple[int, ...], ...]  # Of each pipeline.


@dataclasses.dataclass(frozen=True)
class Layout:
  """The pipelines, and the shares of the batch that each computes.

  Attributes:
    shares: Those that nobody computes are left out of steps.
    segments: First layer of each segment, then the number of layers; those of
      the run.
    detours: For some shares, the node that computes each segment, where that is
      not the owner in the pipeline of the share.
    dissolved: As in `ladder.State`.
  """

  pipelines: tuple[pipelines_lib.Pipeline, ...] = ()
  shares: Shares = ()
  segments: tuple[int, ...] = ()
  detours: Mapping[int, tuple[int, ...]] = dataclasses.field(
      default_factory=dict
  )
  dissolved: tuple[pipelines_lib.Pipeline, ...] = ()

  @functools.cached_property
  def roles(self) -> tuple[failover.Roles, ...]:
    """For each pipeline, owner and shadow of each segment.

    Where a stage is vacant that is an owner in another pipeline, if any is.
    """
    segments = self.segments and partition_lib.Partition(self.segments)
    roles = [p.by_segment(segments) for p in self.pipelines]
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
            tuple(
                stand_in.get(i, n) if i in gone else n
                for i, n in enumerate(r.owners)
            ),
            r.shadows,
        )
        for r, gone in zip(roles, vacant, strict=True)
    )

  @functools.cached_property
  def ways(self) -> tuple[tuple[int, tuple[int, ...], tuple[int, ...]], ...]:
    """Pipeline, owners by segment, and the shares that they compute."""
    found: dict[tuple, list[int]] = {}
    for pipeline, (r, own) in enumerate(
        zip(self.roles, self.shares, strict=True)
    ):
      for share in own:
        owners = tuple(self.detours.get(share, r.owners))
        found.setdefault((pipeline, owners), []).append(share)
    return tuple((*way, tuple(shares)) for way, shares in found.items())

  @functools.cached_property
  def is_joint(self) -> bool:
    """Whether pipelines have nodes in common."""
    rows = [{*r.owners} for r in self.roles]
    return bool(self.detours) or sum(map(len, rows)) > len(set().union(*rows))

  def lines(self, rows: rows_lib.RowPlanner) -> list[lines_lib.Line]:
    """Returns the lines of a whole step."""
    return rows.lines(self.ways, [p.partition for p in self.pipelines])

  @property
  def by_segment(self) -> tuple[Any, ...]:
    """For each pipeline owners and shadows, by segment, and its shares.

    Then, whatever the pipeline, owners and the shares that they compute, and
    what nodes of dissolved pipelines have: node and segment.
    """
    owners = [r.owners for r in self.roles]
    shadows = [r.shadows for r in self.roles]
    lines = [way[1:] for way in self.ways]
    return owners, shadows, self.shares, lines, self.held - self.copies

  @property
  def nodes(self) -> frozenset[int]:
    """The nodes that own a stage."""
    return frozenset(node for p in self.pipelines for node in p.nodes)

  @property
  def owners(self) -> list[list[int | None]]:
    """For each pipeline the owner of each stage; None where it is vacant."""
    return [
        [None if s in p.vacant else n for s, n in enumerate(p.roles.owners)]
        for p in self.pipelines
    ]

  def find_takers(self, before: "Layout") -> list[tuple[int, types.Place]]:
    """Returns who owns which places that it did not own in another layout."""
    former = {
        (node, pipeline, stage)
        for pipeline, row in enumerate(before.owners)
        for stage, node in enumerate(row)
    }
    return [
        (node, types.Place(pipeline, stage))
        for pipeline, row in enumerate(self.owners)
        for stage, node in enumerate(row)
        if node is not None and (node, pipeline, stage) not in former
    ]

  def places_of(self, nodes: Collection[int]) -> tuple[types.Place, ...]:
    """Returns the places that `nodes` own."""
    return tuple(
        types.Place(pipeline, stage)
        for pipeline, row in enumerate(self.owners)
        for stage, owner in enumerate(row)
        if owner in nodes
    )

  def segments_of(self, place: types.Place) -> range:
    """Returns the segments of a place; none if it is not in this layout."""
    if place.pipeline >= len(self.pipelines):
      return range(0)
    bounds = self.pipelines[place.pipeline].partition.bounds
    ends = bounds[place.stage : place.stage + 2]
    return range(*map(self.segments.index, ends)) if ends[1:] else range(0)

  @functools.cached_property
  def copies(self) -> frozenset[tuple[int, int]]:
    """Node and segment, for every copy of a segment's state in use."""
    return frozenset(
        (node, segment)
        for r in self.roles
        for segment, node in (*enumerate(r.owners), *r.shadows.items())
    )

  @functools.cached_property
  def held(self) -> frozenset[tuple[int, int]]:
    """The copies, and those of dissolved pipelines; also of dead nodes."""
    if not self.dissolved:
      return self.copies
    pipelines = self.pipelines + self.dissolved
    return dataclasses.replace(self, pipelines=pipelines).copies

  def committed(self) -> "Layout":
    """Returns what is left after a commit: only those with a role take part."""
    return dataclasses.replace(self, dissolved=())
