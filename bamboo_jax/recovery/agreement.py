"""Agreement of the surviving nodes after a change of the view; pure.

Each node reports its progress and the data that it holds. From all reports
every node draws the same conclusion.
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
  """The progress and holdings that a node reports.

  Attributes:
    steps: Steps that it knows to be committed; -1 if it has just joined.
    version: Number of changes of the layout that it knows.
    rollbacks: Number of returns to a checkpoint.
    layout: Its layout; empty for a node that has just joined.
    holdings: Data of step `steps` that it holds.
    saved: Steps with a complete checkpoint that it finds.
    damaged: Steps whose checkpoints it found damaged since its last commit.
    boot_secs: Time since its start, of a node that has just joined; else 0.
    named: Slow nodes so far.
    num_skipped: Skipped steps in a row up to step `steps`.
  """

  steps: base.StepId = base.StepId(-1)
  version: int = -1
  rollbacks: int = 0
  layout: layout_lib.Layout = layout_lib.Layout()
  holdings: holdings_lib.Holdings = holdings_lib.NOTHING
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
    statuses: Mapping[base.NodeId, Status],
    rules: assignment.RecoveryRules,
    *,
    zones: Mapping[base.NodeId, str],
    leaving: Collection[base.NodeId] = (),
) -> Agreement:
  """Returns the agreement that follows from the statuses of a view's nodes.

  If one member saw a commit, all had voted for it, so it holds for all. A node
  that is several steps behind cannot have taken part; it is `refused`, and the
  others continue without it. If some nodes started from a checkpoint that
  another found damaged, all restart from an older one.

  Args:
    leaving: Nodes that will be preempted.
  """
  statuses = _without_damaged(statuses)
  newest = max(statuses.values(), key=lambda s: s.version)
  # A node that missed a rollback counts steps that no longer exist.
  current = {n: s for n, s in statuses.items() if s.rollbacks == newest.rollbacks}
  steps = max(s.steps for s in current.values())
  # One behind: it voted for the commit, but did not see it.
  refused = {n for n, s in current.items() if 0 <= s.steps < steps - 1}
  statuses = {n: s for n, s in statuses.items() if n not in refused}
  held = {
      node: status.holdings
      for node, status in statuses.items()
      if status.steps == steps  # Else its data is of a committed step.
  }
  layout, rules = newest.layout, rules.among(zones)
  lost = layout.nodes - statuses.keys()
  if layout.roles:
    change = rules.lose(layout, statuses, zones=zones, leaving=leaving, holdings=held)
  else:
    change = rules.restart(statuses, zones=zones, leaving=leaving)
  at_once = change.is_immediate
  saved = {n: s.saved for n, s in statuses.items()}
  return Agreement(
      steps=steps,
      known_version=newest.version,
      version=newest.version + bool(lost and at_once),
      rollbacks=newest.rollbacks,
      layout=change.layout if at_once else layout,
      holdings=(_find_valid(change.layout, held) if at_once else {}),
      lost=frozenset(lost),
      victims=layout.places_of(lost),
      change=change,
      restored=newest_common(saved) if change.rolls_back else base.StepId(0),
      is_fresh=not at_once  # Then without holdings.
      or all(h == holdings_lib.NOTHING for h in held.values()),
      refused=frozenset(refused),
      named=max((s.named for s in current.values() if s.steps == steps), key=len),
      num_skipped=max(s.num_skipped for s in current.values() if s.steps == steps),
  )


def _without_damaged(statuses: Mapping[base.NodeId, Status]) -> Mapping[base.NodeId, Status]:
  """Returns statuses as of joining nodes if some start was from damaged data.

  Otherwise returns `statuses`.
  """
  steps = max(s.steps for s in statuses.values())
  if not any(steps in s.damaged and s.steps < steps for s in statuses.values()):
    return statuses
  return {
      node: Status(
          # Without the damaged one.
          saved=tuple(step for step in status.saved if step != steps),
          boot_secs=status.boot_secs,
          named=status.named,
      )
      for node, status in statuses.items()
  }


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


def newest_common(seen: Mapping[base.NodeId, Sequence[base.StepId]]) -> base.StepId:
  """Returns the step of the newest checkpoint that all nodes see.

  Without a common one, it is the newest that any node sees: it has just become
  complete and may have replaced the older ones. A node that cannot read it has
  another folder, and fails. 0 if there is no checkpoint.
  """
  common = set.intersection(*map(set, seen.values()))
  return max(common or itertools.chain(*seen.values()), default=base.StepId(0))
