"""Who trains what in a cluster, and how that changes; pure.

Every member of a view knows the same layout and draws the same conclusions from
it, by `recovery.decide`, as the simulator does.
"""

from collections.abc import Collection, Mapping, Sequence
import dataclasses
from typing import Any

from bamboo_jax.plan import batch_split
from bamboo_jax.plan import partition as partition_lib
from bamboo_jax.plan import pipelines as pipelines_lib
from bamboo_jax.recovery import decide
from bamboo_jax.recovery import ladder as ladder_lib
from bamboo_jax.schedule import failover


@dataclasses.dataclass(frozen=True)
class Layout:
  """The pipelines that train.

  Attributes:
    roles: Owners and shadows of each pipeline.
    shares: For each pipeline, the shares of the batch that it computes.
  """

  roles: tuple[failover.Roles, ...] = ()
  shares: tuple[tuple[int, ...], ...] = ()

  @property
  def nodes(self) -> frozenset[int]:
    """The nodes that own a stage."""
    return frozenset(node for r in self.roles for node in r.owners)

  def places_of(self, nodes: Collection[int]) -> tuple[str, ...]:
    """Returns what `nodes` own, as `pipeline/stage`."""
    return tuple(
        f"{pipeline}/{stage}"
        for pipeline, r in enumerate(self.roles)
        for stage, owner in enumerate(r.owners)
        if owner in nodes
    )

  def to_json(self) -> dict[str, Any]:
    """Returns plain JSON values."""
    roles = [[list(r.owners), sorted(r.shadows.items())] for r in self.roles]
    return {"roles": roles, "shares": [list(own) for own in self.shares]}

  @classmethod
  def from_json(cls, content: Mapping[str, Any]) -> "Layout":
    """Returns what `to_json` was called on."""
    return cls(
        tuple(
            failover.Roles(tuple(owners), dict(map(tuple, shadows)))
            for owners, shadows in content["roles"]
        ),
        tuple(map(tuple, content["shares"])),
    )


@dataclasses.dataclass(frozen=True)
class Change:
  """A layout that follows another.

  Attributes:
    layout: The new one.
    rung: Of the recovery ladder.
    reason: Why, in words.
    copies: State that has to be copied first.
    rolls_back: Whether state comes from a checkpoint instead.
  """

  layout: Layout
  rung: str
  reason: str
  copies: tuple[failover.Copy, ...] = ()
  rolls_back: bool = False


@dataclasses.dataclass(frozen=True)
class Rules:
  """How layouts change.

  Attributes:
    partition: What each pipeline looks like.
    num_shares: Shares of the batch, and most pipelines there may be.
    ladder: Which rungs there are.
    planner: Makes new pipelines.
  """

  partition: partition_lib.Partition
  num_shares: int
  ladder: ladder_lib.Ladder
  planner: ladder_lib.Planner

  def lose(
      self,
      layout: Layout,
      members: Collection[int],
      *,
      zones: Mapping[int, str],
  ) -> Change:
    """Returns how training goes on without nodes that have died.

    Args:
      layout: Until now.
      members: All live nodes.
      zones: Zone of each of them.
    """
    state = self._state(layout, members, zones=zones)
    lost = ladder_lib.Change(lost=layout.nodes - {*members})
    decision = decide.decide(
        state, lost, ladder=self.ladder, planner=self.planner
    )
    if decision.rung == "reroute" and all(
        p.vacant for p in decision.state.pipelines
    ):
      # Together they have all stages, but here whole pipelines reroute.
      ladder = dataclasses.replace(self.ladder, reroute=False)
      decision = decide.decide(state, lost, ladder=ladder, planner=self.planner)
    if decision.rung in ("none", "shadow", "reroute"):
      return self._without_lost(layout, decision)
    after = self._spread(decision.state.pipelines)
    return Change(
        after,
        decision.rung,
        decision.reason,
        copies=(
            () if decision.rolls_back else find_copies(layout, members, after)
        ),
        rolls_back=decision.rolls_back,
    )

  def improve(
      self,
      layout: Layout,
      members: Collection[int],
      *,
      zones: Mapping[int, str],
      leaving: Collection[int] = (),
  ) -> Change:
    """Returns what should be done between two steps.

    Spares take places, replicas are made, new pipelines too if they pay; and
    who is about to leave hands over, to a spare or to its shadow.

    Args:
      layout: Until now; all its nodes are alive.
      members: All live nodes.
      zones: Zone of each of them.
      leaving: Nodes that will be preempted.
    """
    state = self._state(layout, members, zones=zones, leaving=leaving)
    options = dict(ladder=self.ladder, planner=self.planner, when="boundary")
    decision = decide.decide(state, ladder_lib.NOTHING, **options)
    staying = [p for p in decision.state.pipelines]
    if leaving and any(not {*p.nodes}.isdisjoint(leaving) for p in staying):
      lost = ladder_lib.Change(lost=frozenset(leaving))
      handed = decide.decide(decision.state, lost, **options)
      if not handed.rolls_back:
        decision = handed
    pipelines = [p for p in decision.state.pipelines if not p.vacant]
    if tuple(p.roles for p in pipelines) == layout.roles:
      return Change(layout, "none", decision.reason)
    after = self._spread(pipelines)
    return Change(
        after,
        decision.rung,
        decision.reason,
        copies=find_copies(layout, members, after),
    )

  def begin_anew(
      self, members: Collection[int], *, zones: Mapping[int, str]
  ) -> Change:
    """Returns how nodes of which none has a role begin, from a checkpoint."""
    nothing = ladder_lib.State((), tuple(sorted(members)), zones=zones)
    decision = decide.decide(
        nothing,
        ladder_lib.NOTHING,
        ladder=self.ladder,
        planner=self.planner,
        when="boundary",
    )
    return Change(
        self._spread(decision.state.pipelines),
        decision.rung,
        decision.reason,
        rolls_back=True,
    )

  def start(self, roles: Sequence[failover.Roles]) -> Layout:
    """Returns the layout at the start of a run."""
    return self._spread(
        [pipelines_lib.Pipeline(self.partition, r) for r in roles]
    )

  def _state(
      self,
      layout: Layout,
      members: Collection[int],
      *,
      zones: Mapping[int, str],
      leaving: Collection[int] = (),
  ) -> ladder_lib.State:
    return ladder_lib.State(
        pipelines=tuple(
            pipelines_lib.Pipeline(self.partition, r) for r in layout.roles
        ),
        spares=tuple(sorted({*members} - layout.nodes)),
        leaving=frozenset(leaving) & {*members},
        zones=zones,
    )

  def _without_lost(
      self, layout: Layout, decision: ladder_lib.Decision
  ) -> Change:
    """Drops pipelines that have lost a stage; others keep what they compute."""
    whole = [
        (p.roles, layout.shares[i])
        for i, p in enumerate(decision.state.pipelines)
        if not p.vacant
    ]
    roles, kept = zip(*whole, strict=True)
    shares = batch_split.deal_shares(self.num_shares, len(roles), kept)
    return Change(Layout(roles, shares), decision.rung, decision.reason)

  def _spread(self, pipelines: Sequence[pipelines_lib.Pipeline]) -> Layout:
    if not pipelines:
      return Layout()
    shares = batch_split.deal_shares(self.num_shares, len(pipelines))
    return Layout(tuple(p.roles for p in pipelines), shares)


def find_copies(
    before: Layout, members: Collection[int], after: Layout
) -> tuple[failover.Copy, ...]:
  """Returns what state has to be copied so that `after` can train.

  Of several live nodes that have it, the one that has least to send does.

  Args:
    before: Who has which state now.
    members: All live nodes.
    after: Who needs which.
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
  """Returns each node with the stages of which it has the state."""
  held = set()
  for r in layout.roles:
    held |= {(node, stage) for stage, node in enumerate(r.owners)}
    held |= {(node, stage) for stage, node in r.shadows.items()}
  return held
