"""How the layout of a cluster changes; pure.

Every member of a view knows the same layout and draws the same conclusions from
it, by `recovery.decide`, as the simulator does.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
import contextlib
import dataclasses

from bamboo_jax import base
from bamboo_jax.plan import (
    batch_split,
    pipelines as pipelines_lib,
    planner as plan_lib,
    predictor as predictor_lib,
)
from bamboo_jax.recovery import (
    decide,
    layout as layout_lib,
    moves,
    placement,
    planner as planner_lib,
)
from bamboo_jax.schedule import costs as costs_lib, dealing, failover, lines as lines_lib

NodeId = base.NodeId
Layout = layout_lib.Layout
Decision = decide.Decision
Pipeline = pipelines_lib.Pipeline
Nodes = Collection[NodeId]
Zones = Mapping[NodeId, str]
RegionNames = tuple[tuple[NodeId, str], ...]

_LEAST_GAIN = 0.02  # Fraction of a step that detours must save.


@dataclasses.dataclass(frozen=True)
class RecoveryRules:
  """Completes decisions of a run: deals shares to pipelines, and plans copies of state.

  Attributes:
    plan: Plans steps by segments of the run; no stage starts inside one. There are
      at most as many pipelines as shares of its batch.
    ladder: May reroute by shares or whole shares, but not by stage.
    predictor: Deals shares, evenly or so that all pipelines finish together.
    spread: Returns the rules for nodes of several regions; None: all links are alike.
  """

  plan: plan_lib.Plan
  ladder: decide.Ladder
  planner: planner_lib.Planner
  predictor: predictor_lib.Predictor
  spread: Callable[[RegionNames], "RecoveryRules"] | None = None

  def among(self, zones: Zones) -> "RecoveryRules":
    """Returns the rules for nodes in `zones`, which know the slow link between regions."""
    names = tuple((node, placement.region_of(zone)) for node, zone in sorted(zones.items()))
    if self.spread is None or len({region for _, region in names}) < 2:
      return self
    return self.spread(names)

  def lose(
      self,
      layout: Layout,
      members: Nodes,
      *,
      zones: Zones,
      leaving: Nodes = (),
      holdings: lines_lib.Holdings | None = None,
  ) -> Decision:
    """Returns the change after the death of the nodes not among `members`.

    Pipelines that survive keep their shares, and take over those of the others.
    With the rung "drop", shares of a pipeline with lost stages are not computed
    until all of its stages have an owner again.

    Args:
      leaving: Nodes that will be preempted.
      holdings: Data of the step that each node holds; if given, owed work is
        dealt over all nodes that can do it, unless memory is limited.
    """
    lost = layout.nodes - {*members}
    decision = self._decide(layout, members, zones, leaving, lost=lost, when="step")
    if not decision.is_immediate:
      after, copies = self.start(decision.layout.pipelines), decision.copies
      if not decision.rolls_back:
        copies = find_copies(layout, members, after, self.predictor.profile.regions)
      return dataclasses.replace(decision, layout=after, copies=copies)
    pipelines, kept = decision.layout.pipelines, layout.shares
    if len(pipelines) < len(kept):  # All nodes of the others are dead.
      pairs = zip(layout.pipelines, kept, strict=True)
      kept = tuple(own for p, own in pairs if not lost.issuperset(p.nodes))
    if self.ladder.reroute == "none":
      pairs = zip(pipelines, kept, strict=True)
      shares = tuple(() if p.vacant else own for p, own in pairs)
      return dataclasses.replace(decision, layout=Layout(pipelines, shares, layout.segments))
    after = self.start(pipelines, kept)
    if self.ladder.reroute == "shares":
      after = after.keep_detours(layout, lost)
      if holdings is not None and lost and not self._is_bounded:
        with contextlib.suppress(base.InfeasibleError):  # The step is repeated.
          after = self._deal(after, holdings)
    return dataclasses.replace(decision, layout=after)

  def improve(
      self, layout: Layout, members: Nodes, *, zones: Zones, leaving: Nodes = ()
  ) -> Decision:
    """Returns the change to make between two steps, while all nodes live.

    Its rung is "none" if no better layout is found.
    """
    decision = self._decide(layout, members, zones, leaving)
    made, rung = decision.layout.pipelines, decision.rung
    if made == layout.pipelines:
      after, rung = self._balance(layout), "none"
    else:
      after = self._balance(self.start(made))
    copies = find_copies(layout, members, after, self.predictor.profile.regions)
    return Decision(rung, after, decision.reason, copies=copies)

  def restart(self, members: Nodes, *, zones: Zones, leaving: Nodes = ()) -> Decision:
    """Returns the change to a first layout, with state from a checkpoint."""
    decision = self._decide(Layout(), members, zones, leaving)
    after = self.start(decision.layout.pipelines)
    return dataclasses.replace(decision, layout=after, rolls_back=True)

  def start(
      self, pipelines: Sequence[Pipeline], kept: Sequence[Sequence[base.ShareId]] | None = None
  ) -> Layout:
    """Returns a layout of `pipelines`, which keep the shares `kept`.

    Those with lost stages have shares only if each stage of a share may be
    computed by another node.
    """
    if not pipelines:
      return Layout()
    by_stage = self.ladder.reroute == "shares"
    takers = [i for i, p in enumerate(pipelines) if by_stage or not p.vacant]
    counts = None
    if self.predictor.by_makespan:
      num_microbatches = self.predictor.split([pipelines[i] for i in takers])
      counts = tuple(n // self.plan.batch.microbatches_per_share for n in num_microbatches)
    dealt = batch_split.deal_shares(
        self.plan.batch.num_shares, len(takers), kept and [kept[i] for i in takers], counts
    )
    shares = dict(zip(takers, dealt, strict=True))
    return Layout(
        tuple(pipelines),
        tuple(shares.get(i, ()) for i in range(len(pipelines))),
        self.plan.segments.bounds,
    )

  def _decide(
      self,
      layout: Layout,
      members: Nodes,
      zones: Zones,
      leaving: Nodes,
      *,
      lost: frozenset[NodeId] = frozenset(),
      when: str = "boundary",
  ) -> Decision:
    layout = dataclasses.replace(layout, spares=tuple(sorted({*members} - layout.nodes)))
    change = decide.Change(lost=lost, noticed=frozenset(leaving), zones=zones)
    return decide.decide(layout, change, ladder=self.ladder, planner=self.planner, when=when)

  def _balance(self, layout: Layout) -> Layout:
    """Returns the layout with detours around nodes that have several stages."""
    if self.ladder.reroute != "shares" or not layout.pipelines:
      return layout
    fresh, whole = self.start(layout.pipelines), layout.pipelines
    if self._is_bounded or all(len(p.nodes) == p.partition.num_stages for p in whole):
      return fresh
    return self._deal(fresh, {}, least_gain=_LEAST_GAIN)

  @property
  def _is_bounded(self) -> bool:
    return self.plan.memory_limit_bytes is not None

  def _deal(self, layout: Layout, holdings: lines_lib.Holdings, least_gain: float = 0.0) -> Layout:
    """Returns the layout with the detours that end the step soonest."""
    size = self.plan.batch.microbatches_per_share
    dealt = dealing.deal(
        layout.lines(self.plan),
        copies=layout.held,
        costs=self.plan.costs,
        holdings=holdings,
        share_size=size,
        least_gain=least_gain,
    )
    detours = {
        base.ShareId(m // size): tuple(line.owners)
        for line in dealt
        if line.owners != layout.roles[line.pipeline].owners
        for m in line.microbatches
    }
    return dataclasses.replace(layout, detours=dict(sorted(detours.items())))


def find_copies(
    before: Layout, members: Nodes, after: Layout, regions: costs_lib.Regions = costs_lib.ALIKE
) -> tuple[failover.StageCopy, ...]:
  """Returns the copies of state between live members that `after` needs."""
  alike = [1] * max(0, len(before.segments) - 1, len(after.segments) - 1)
  copies = moves.plan_copies(before.held, after.held, members, alike, regions)
  return tuple(
      failover.StageCopy(segment, copy.source, copy.destination)
      for copy in copies
      for segment in base.stages(copy.first, copy.last)
  )
