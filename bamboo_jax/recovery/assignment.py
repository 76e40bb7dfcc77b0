"""Layouts of a cluster, and how they change; pure.

Every member of a view knows the same layout and draws the same conclusions from
it, by `recovery.decide`, as the simulator does.
"""

from collections.abc import Collection, Mapping, Sequence
import dataclasses

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
  """The roles in each pipeline, and the shares of the batch it computes."""

  roles: tuple[failover.Roles, ...] = ()
  shares: tuple[tuple[int, ...], ...] = ()

  @property
  def nodes(self) -> frozenset[int]:
    """The nodes that own a stage."""
    return frozenset(node for r in self.roles for node in r.owners)

  def places_of(self, nodes: Collection[int]) -> tuple[types.Place, ...]:
    """Returns the places that `nodes` own."""
    return tuple(
        types.Place(pipeline, stage)
        for pipeline, r in enumerate(self.roles)
        for stage, owner in enumerate(r.owners)
        if owner in nodes
    )


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
    partition: That of every pipeline.
    num_shares: Shares of the batch, and most pipelines there may be.
    ladder: May not reroute by stage: here only owners can compute a stage.
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
    """Returns the start from a checkpoint of nodes without roles."""
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
  """Returns (node, stage) for every copy of a stage's state."""
  held = set()
  for r in layout.roles:
    held |= {(node, stage) for stage, node in enumerate(r.owners)}
    held |= {(node, stage) for stage, node in r.shadows.items()}
  return held
