"""Agreement of the surviving nodes after a change of the view; pure.

Each member reports its progress and the data that its nodes hold. From all reports
every member draws the same conclusion.
"""

from collections.abc import Collection, Mapping, Sequence
import dataclasses
import itertools

from bamboo_jax import base
from bamboo_jax.base import types
from bamboo_jax.recovery import assignment, layout as layout_lib, slowness
from bamboo_jax.schedule import holdings as holdings_lib


@dataclasses.dataclass(frozen=True)
class Status:
  """The progress that a member reports, and what its nodes hold.

  Attributes:
    holdings: Data of step `steps` that each of its live nodes holds.
    steps: Steps that it knows to be committed; -1 if it has just joined.
    version: Number of changes of the layout that it knows.
    rollbacks: Number of returns to a checkpoint.
    layout: Its layout; empty for a member that has just joined.
    saved: Steps with a complete checkpoint that it finds.
    damaged: Steps whose checkpoints it found damaged since its last commit.
    boot_secs: Time since its start, of a member that has just joined; else 0.
    named: Slow nodes so far.
    num_skipped: Skipped steps in a row up to step `steps`.
  """

  holdings: Mapping[base.NodeId, holdings_lib.Holdings]
  steps: base.StepId = base.StepId(-1)
  version: int = -1
  rollbacks: int = 0
  layout: layout_lib.Layout = layout_lib.Layout()
  saved: tuple[base.StepId, ...] = ()
  damaged: tuple[base.StepId, ...] = ()
  boot_secs: float = 0.0
  named: tuple[slowness.Named, ...] = ()
  num_skipped: int = 0


@dataclasses.dataclass(frozen=True)
class Agreement:
  """The state from which all nodes of a view continue.

  Attributes:
    steps: Number of committed steps; the next step is started or continued.
    known_version: The newest version of the layout that any node knew.
    version: `known_version`, plus one if the layout has changed at once.
    rollbacks: Number of returns to a checkpoint so far.
    layout: The layout from now on, or until `change` is carried out.
    holdings: Data of the step that can still be used, by node of `layout`.
    lost: Lost nodes that had a role.
    victims: The places that they owned.
    change: The decision; unless it is immediate, to be carried out before training can
      continue.
    restored: The step of the checkpoint that `change` returns to, or 0.
    is_fresh: Whether the step runs from its start.
    refused: Nodes with impossible progress, treated as lost.
    named: Slow nodes so far, as the members know that have done most steps.
    num_skipped: Skipped steps in a row up to step `steps`.
  """

  steps: base.StepId
  known_version: int
  version: int
  rollbacks: int
  layout: layout_lib.Layout
  holdings: Mapping[base.NodeId, holdings_lib.Holdings]
  lost: frozenset[base.NodeId]
  victims: tuple[types.Place, ...]
  change: assignment.Decision
  restored: base.StepId
  is_fresh: bool
  refused: frozenset[base.NodeId] = frozenset()
  named: tuple[slowness.Named, ...] = ()
  num_skipped: int = 0


def agree(
    statuses: Sequence[Status],
    rules: assignment.RecoveryRules,
    *,
    zones: Mapping[base.NodeId, str],
    leaving: Collection[base.NodeId] = (),
) -> Agreement:
  """Returns the agreement that follows from the statuses of a view's members.

  If one member saw a commit, all had voted for it, so it holds for all. A member
  that is several steps behind cannot have taken part; its nodes are `refused`, and the
  others continue without it. If some nodes started from a checkpoint that
  another found damaged, all restart from an older one.

  Args:
    rules: Those for nodes in `zones`.
    leaving: Nodes that will be preempted.
  """
  statuses = _without_damaged(statuses)
  newest = max(statuses, key=lambda s: s.version)
  # A member that missed a rollback counts steps that no longer exist.
  current = [s for s in statuses if s.rollbacks == newest.rollbacks]
  steps = max(s.steps for s in current)
  # One behind: it voted for the commit, but did not see it.
  refused = {n for s in current if 0 <= s.steps < steps - 1 for n in s.holdings}
  statuses = [s for s in statuses if refused.isdisjoint(s.holdings)]
  members = {n for s in statuses for n in s.holdings}
  # Else its data is of a committed step.
  held = {n: h for s in statuses if s.steps == steps for n, h in s.holdings.items()}
  layout = newest.layout
  # Who comes too late for the first layout may have a number that is in it, but holds nothing.
  late = {n for s in statuses if s.steps < 0 for n in s.holdings} & layout.nodes
  lost = layout.nodes - (members - late)
  victims = layout.places_of(lost)
  layout = layout.without_numbers(late)
  if layout.roles:
    change = rules.lose(layout, members, zones=zones, leaving=leaving, holdings=held)
  else:
    change = rules.restart(members, zones=zones, leaving=leaving)
  at_once = change.is_immediate
  return Agreement(
      steps=steps,
      known_version=newest.version,
      version=newest.version + bool(lost and at_once),
      rollbacks=newest.rollbacks,
      layout=change.layout if at_once else layout,
      holdings=(_find_valid(change.layout, held) if at_once else {}),
      lost=frozenset(lost),
      victims=victims,
      change=change,
      restored=newest_common([s.saved for s in statuses]) if change.rolls_back else base.StepId(0),
      is_fresh=not at_once  # Then without holdings.
      or all(h == holdings_lib.NOTHING for h in held.values()),
      refused=frozenset(refused),
      named=max((s.named for s in current if s.steps == steps), key=len),
      num_skipped=max(s.num_skipped for s in current if s.steps == steps),
  )


def _without_damaged(statuses: Sequence[Status]) -> Sequence[Status]:
  """Returns statuses as of joining members if some start was from damaged data.

  Otherwise returns `statuses`.
  """
  steps = max(s.steps for s in statuses)
  if not any(steps in s.damaged and s.steps < steps for s in statuses):
    return statuses
  return [
      Status(
          dict.fromkeys(status.holdings, holdings_lib.NOTHING),
          # Without the damaged one.
          saved=tuple(step for step in status.saved if step != steps),
          boot_secs=status.boot_secs,
          named=status.named,
      )
      for status in statuses
  ]


def _find_valid(
    after: layout_lib.Layout, held: Mapping[base.NodeId, holdings_lib.Holdings]
) -> dict[base.NodeId, holdings_lib.Holdings]:
  """Returns the part of the holdings that is of use in a new layout, by node.

  Residuals of segments whose state the node has; sums of those it computes.
  """
  computed = {
      (node, segment) for _, owners, _ in after.ways for segment, node in base.by_stage(owners)
  }
  known = computed | after.copies
  return {
      node: held.get(node, holdings_lib.NOTHING).limited(
          residuals={s for n, s in known if n == node},
          accumulated={s for n, s in computed if n == node},
      )
      for node in sorted({n for n, _ in known})
  }


def newest_common(seen: Collection[Sequence[base.StepId]]) -> base.StepId:
  """Returns the step of the newest checkpoint that all members see.

  Without a common one, it is the newest that any member sees: it has just become
  complete and may have replaced the older ones. A member that cannot read it has
  another folder, and fails. 0 if there is no checkpoint.
  """
  common = set.intersection(*map(set, seen))
  return max(common or itertools.chain(*seen), default=base.StepId(0))
