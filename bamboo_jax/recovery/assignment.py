"""Who trains what in a cluster, and how that changes; pure.

Every member of a view knows the same layout and draws the same conclusions from
it, by `recovery.decide`, as the simulator does.
"""

from collections.abc import Collection, Mapping, Sequence
import dataclasses
from typing import Any

from bamboo_jax.base import json as json_lib
from bamboo_jax.base import types
from bamboo_jax.plan import batch_split
from bamboo_jax.plan import partition as partition_lib
from bamboo_jax.plan import pipelines as pipelines_lib
from bamboo_jax.recovery import decide
from bamboo_jax.recovery import ladder as ladder_lib
from bamboo_jax.recovery import planner as planner_lib
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

  def places_of(self, nodes: Collection[int]) -> tuple[types.Place, ...]:
    """Returns what `nodes` own."""
    return tuple(
        types.Place(pipeline, stage)
        for pipeline, r in enumerate(self.roles)
        for stage, owner in enumerate(r.owners)
        if owner in nodes
    )

  def to_json(self) -> dict[str, Any]:
    """Returns plain JSON values."""
    return json_lib.to_plain(self)

  @classmethod
  def from_json(cls, content: Mapping[str, Any]) -> "Layout":
    """Returns the layout that `to_json` has written."""
    return json_lib.from_plain(cls, content)


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

  @property
  def is_immediate(self) -> bool:
    """See `ladder.Decision`."""
    return self.rung in ladder_lib.IMMEDIATE


@dataclasses.dataclass(frozen=True)
class Rules:
  """Layouts to states that `decide` decides about, and decisions to changes.

  Attributes:
    partition: What each pipeline looks like.
    num_shares: Shares of the batch, and most pipelines there may be.
    ladder: Which rungs there are; others than owners of a stage cannot compute
      it here, so it may not reroute by stage.
    planner: Makes new pipelines.
  """

  partition: partition_lib.Partition
  num_shares: int
  ladder: ladder_lib.Ladder
  planner: planner_lib.Planner

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
    """Returns how training goes on without nodes that have died.

    Pipelines that go on keep the shares that they compute.

    Args:
      layout: Until now.
      members: All live nodes.
      zones: Zone of each of them.
      leaving: Nodes that will be preempted.
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
    """Returns what should be done between two steps.

    Args:
      layout: Until now; all its nodes are alive.
      members: All live nodes.
      zones: Zone of each of them.
      leaving: Nodes that will be preempted.
    """
    change = ladder_lib.Change(noticed=frozenset(leaving))
    decision = self._decide(layout, members, change, zones=zones)
    if tuple(p.roles for p in decision.state.pipelines) == layout.roles:
      return Change(layout, "none", decision.reason)
    return self._change(layout, members, decision)

  def begin_anew(
      self,
      members: Collection[int],
      *,
      zones: Mapping[int, str],
      leaving: Collection[int] = (),
  ) -> Change:
    """Returns how nodes of which none has a role begin, from a checkpoint."""
    change = ladder_lib.Change(noticed=frozenset(leaving))
    decision = self._decide(Layout(), members, change, zones=zones)
    decision = dataclasses.replace(decision, rolls_back=True)
    return self._change(Layout(), members, decision)

  def start(self, roles: Sequence[failover.Roles]) -> Layout:
    """Returns the layout at the start of a run."""
    return self._spread(roles)

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
        pipelines=tuple(
            pipelines_lib.Pipeline(self.partition, r) for r in layout.roles
        ),
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
    after = self._spread([p.roles for p in decision.state.pipelines], kept)
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
      roles: Sequence[failover.Roles],
      kept: Sequence[Sequence[int]] | None = None,
  ) -> Layout:
    if not roles:
      return Layout()
    shares = batch_split.deal_shares(self.num_shares, len(roles), kept)
    return Layout(tuple(roles), shares)


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
