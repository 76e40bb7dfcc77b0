"""Layouts of a cluster, and how they change; pure.

Every member of a view knows the same layout and draws the same conclusions from
it, by `recovery.decide`, as the simulator does.

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

from collections.abc import Collection, Iterator, Mapping, Sequence
import dataclasses
import functools

from bamboo_jax.base import types
from bamboo_jax.plan import batch_split
from bamboo_jax.plan import partition as partition_lib
from bamboo_jax.plan import pipelines as pipelines_lib
from bamboo_jax.plan import predictor as predictor_lib
from bamboo_jax.recovery import decide
from bamboo_jax.recovery import ladder as ladder_lib
from bamboo_jax.recovery import planner as planner_lib
from bamboo_jax.schedule import failover

Shares = tuple[tuple[int, ...], ...]  # Of each pipeline.


@dataclasses.dataclass(frozen=True)
class Layout:
  """The pipelines, and the shares of the batch that each computes.

  Attributes:
    segments: First layer of each segment, then the number of layers; those of
      the run.
  """

  pipelines: tuple[pipelines_lib.Pipeline, ...] = ()
  shares: Shares = ()
  segments: tuple[int, ...] = ()

  @functools.cached_property
  def roles(self) -> tuple[failover.Roles, ...]:
    """For each pipeline, owner and shadow of each segment."""
    segments = self.segments and partition_lib.Partition(self.segments)
    return tuple(p.by_segment(segments) for p in self.pipelines)

  @property
  def by_segment(
      self,
  ) -> tuple[list[tuple[int, ...]], list[Mapping[int, int]], Shares]:
    """For each pipeline owners and shadows, by segment, and its shares."""
    owners = [r.owners for r in self.roles]
    return owners, [r.shadows for r in self.roles], self.shares

  @property
  def nodes(self) -> frozenset[int]:
    """The nodes that own a stage."""
    return frozenset(node for p in self.pipelines for node in p.nodes)

  def places_of(self, nodes: Collection[int]) -> tuple[types.Place, ...]:
    """Returns the places that `nodes` own."""
    return tuple(
        types.Place(pipeline, stage)
        for pipeline, p in enumerate(self.pipelines)
        for stage, owner in enumerate(p.roles.owners)
        if owner in nodes
    )

  def segments_of(self, place: types.Place) -> range:
    """Returns the segments of a place; none if it is not in this layout."""
    if place.pipeline >= len(self.pipelines):
      return range(0)
    bounds = self.pipelines[place.pipeline].partition.bounds
    ends = bounds[place.stage : place.stage + 2]
    return range(*map(self.segments.index, ends)) if ends[1:] else range(0)


@dataclasses.dataclass(frozen=True)
class Change:
  """The next layout, and the state that it needs first.

  Attributes:
    rung: Of the recovery ladder.
    copies: State that has to be copied first.
    rolls_back: Whether state comes from a checkpoint instead.
  """

  layout: Layout
  rung: str
  reason: str
  copies: tuple[failover.Copy, ...] = ()
  rolls_back: bool = False

  @property
  def is_immediate(self) -> bool:
    """Whether the step in flight goes on, as in `ladder.Decision`."""
    return self.rung in ladder_lib.IMMEDIATE


@dataclasses.dataclass(frozen=True)
class Rules:
  """Turns layouts into states for `decide`, and its decisions into changes.

  Attributes:
    segments: Of the run; no stage begins inside one.
    num_shares: Shares of the batch, and most pipelines there may be.
    predictor: Deals shares so that all pipelines finish together; None: evenly.
    ladder: May not reroute by stage: here only owners can compute a stage.
  """

  segments: partition_lib.Partition
  num_shares: int
  ladder: ladder_lib.Ladder
  planner: planner_lib.Planner
  predictor: predictor_lib.Predictor | None = None

  def __post_init__(self) -> None:
    if self.ladder.reroute == "stage":
      raise ValueError("reroute must be pipeline or none, got 'stage'.")

  def lose(
      self,
      layout: Layout,
      members: Collection[int],
      *,
      zones: Mapping[int, str],
      leaving: Collection[int] = (),
  ) -> Change:
    """Returns the change after nodes of `layout` that are no `members` died.

    Pipelines that go on keep the shares that they compute.
    """
    change = ladder_lib.Change(
        lost=layout.nodes - {*members}, noticed=frozenset(leaving)
    )
    decision = self._decide(layout, members, change, zones=zones, when="step")
    kept = None
    if decision.is_immediate:
      out = {place.pipeline for place in decision.gone}
      kept = [own for i, own in enumerate(layout.shares) if i not in out]
    return self._change(layout, members, decision, kept)

  def improve(
      self,
      layout: Layout,
      members: Collection[int],
      *,
      zones: Mapping[int, str],
      leaving: Collection[int] = (),
  ) -> Change:
    """Returns the change to make between two steps, while all nodes live.

    Its rung is "none" if there is nothing to improve.
    """
    change = ladder_lib.Change(noticed=frozenset(leaving))
    decision = self._decide(layout, members, change, zones=zones)
    if decision.state.pipelines == layout.pipelines:
      return Change(layout, "none", decision.reason)
    return self._change(layout, members, decision)

  def after_deaths(
      self,
      layout: Layout,
      members: Collection[int],
      *,
      zones: Mapping[int, str],
  ) -> Iterator[Layout]:
    """Yields the layout that training goes on with after any one death.

    Left out are those whose pipelines have the same partitions and as many
    shares as now: they take nothing new.
    """

    def sizes(layout: Layout) -> list[tuple[partition_lib.Partition, int]]:
      pairs = zip(layout.pipelines, layout.shares, strict=True)
      return [(p.partition, len(own)) for p, own in pairs]

    for node in sorted(layout.nodes) if self.predictor else ():
      left = {*members} - {node}
      lost = self.lose(layout, left, zones=zones).layout
      if lost.pipelines:
        after = self.improve(lost, left, zones=zones).layout
        if sizes(after) != sizes(layout):
          yield after

  def begin_anew(
      self,
      members: Collection[int],
      *,
      zones: Mapping[int, str],
      leaving: Collection[int] = (),
  ) -> Change:
    """Returns the start from a checkpoint of nodes without roles."""
    change = ladder_lib.Change(noticed=frozenset(leaving))
    decision = self._decide(Layout(), members, change, zones=zones)
    decision = dataclasses.replace(decision, rolls_back=True)
    return self._change(Layout(), members, decision)

  def start(self, pipelines: Sequence[pipelines_lib.Pipeline]) -> Layout:
    """Returns the layout at the start of a run."""
    return self._spread(pipelines)

  def _decide(
      self,
      layout: Layout,
      members: Collection[int],
      change: ladder_lib.Change,
      *,
      zones: Mapping[int, str],
      when: str = "boundary",
  ) -> ladder_lib.Decision:
    state = ladder_lib.State(
        pipelines=layout.pipelines,
        spares=tuple(sorted({*members} - layout.nodes)),
        zones=zones,
    )
    return decide.decide(
        state, change, ladder=self.ladder, planner=self.planner, when=when
    )

  def _change(
      self,
      layout: Layout,
      members: Collection[int],
      decision: ladder_lib.Decision,
      kept: Sequence[Sequence[int]] | None = None,
  ) -> Change:
    after = self._spread(decision.state.pipelines, kept)
    copies = ()
    if kept is None and not decision.rolls_back:
      copies = find_copies(layout, members, after)
    return Change(
        after,
        decision.rung,
        decision.reason,
        copies=copies,
        rolls_back=decision.rolls_back,
    )

  def _spread(
      self,
      pipelines: Sequence[pipelines_lib.Pipeline],
      kept: Sequence[Sequence[int]] | None = None,
  ) -> Layout:
    if not pipelines:
      return Layout()
    shares = batch_split.deal_shares(
        self.num_shares, len(pipelines), kept, self._counts(pipelines)
    )
    return Layout(tuple(pipelines), shares, self.segments.bounds)

  def _counts(
      self, pipelines: Sequence[pipelines_lib.Pipeline]
  ) -> tuple[int, ...] | None:
    if self.predictor is None:
      return None
    size = self.predictor.num_microbatches // self.num_shares
    return tuple(n // size for n in self.predictor.split(pipelines))


def find_copies(
    before: Layout, members: Collection[int], after: Layout
) -> tuple[failover.Copy, ...]:
  """Returns the copies of state that `after` needs.

  Of the live `members` that have a state, the one with least to send does.
  """
  held, num_sent = _held(before), dict.fromkeys(sorted(members), 0)
  copies = []
  for node, stage in sorted(_held(after) - held):
    holders = [n for n in num_sent if (n, stage) in held]
    source = min(holders, key=num_sent.__getitem__)
    num_sent[source] += 1
    copies.append(failover.Copy(stage, source, node))
  return tuple(copies)


def _held(layout: Layout) -> set[tuple[int, int]]:
  """Returns (node, segment) for every copy of a segment's state."""
  held = set()
  for r in layout.roles:
    held |= {(node, stage) for stage, node in enumerate(r.owners)}
    held |= {(node, stage) for stage, node in r.shadows.items()}
  return held
