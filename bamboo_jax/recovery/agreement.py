"""Agreement of the surviving nodes after a change of the view; pure.

Each says how far it is and what it holds; from what all have said, each draws
the same conclusion.
"""

from collections.abc import Collection, Mapping, Sequence
import dataclasses
import itertools

from bamboo_jax.base import types
from bamboo_jax.recovery import assignment
from bamboo_jax.recovery import layout as layout_lib
from bamboo_jax.schedule import holdings as holdings_lib


@dataclasses.dataclass(frozen=True)
class Status:
  """The progress and holdings that a node reports.

  Attributes:
    steps: Steps that it knows to be committed; -1 if it has just come.
    version: Counts the changes of the layout that it knows.
    rollbacks: How often it has gone back to a checkpoint.
    layout: Empty for a node that has just come.
    holdings: What it holds of step `steps`.
    saved: Steps with a complete checkpoint, as far as it can see.
    damaged: Steps whose checkpoints it has found damaged, and has committed
      nothing since.
    boot_secs: How long it took to come, of a node that has just come.
  """

  steps: int
  version: int
  rollbacks: int
  layout: layout_lib.Layout
  holdings: holdings_lib.Holdings
  saved: tuple[int, ...]
  damaged: tuple[int, ...] = ()
  boot_secs: float = 0.0


@dataclasses.dataclass(frozen=True)
class Agreement:
  """How training goes on.

  Attributes:
    steps: Number of committed steps; the next step is begun, or gone on with.
    known_version: The newest version of the layout that anybody knew.
    version: `known_version`, plus one if the layout has changed at once.
    layout: In force from now on, or until `change` is carried out.
    holdings: Of the step, by node of `layout`, as far as they are of use.
    lost: Nodes that had a role and are gone.
    victims: The places that they owned.
    rung: Of the recovery ladder, "none" if nobody was lost.
    change: To be carried out before anybody can go on; None if nothing is.
    restored: The step of the checkpoint that `change` goes back to, or 0.
    is_fresh: Whether the step begins from its start.
    refused: Nodes whose progress is impossible, as if they were gone.
  """

  steps: int
  known_version: int
  version: int
  rollbacks: int
  layout: layout_lib.Layout
  holdings: Mapping[int, holdings_lib.Holdings]
  lost: frozenset[int]
  victims: tuple[types.Place, ...]
  rung: str
  reason: str
  change: assignment.Change | None
  restored: int
  is_fresh: bool
  refused: frozenset[int] = frozenset()


def agree(
    statuses: Mapping[int, Status],
    rules: assignment.Rules,
    *,
    zones: Mapping[int, str],
    leaving: Collection[int] = (),
) -> Agreement:
  """Returns the agreement that follows from the statuses, by node, of a view.

  If one member saw a commit all others had voted for it, so it holds for all.
  Nodes that are `leaving` will be preempted.

  A node that is several steps behind cannot have taken part; it is `refused`,
  and the others go on without it. Where some have begun with a checkpoint that
  another has found damaged, all begin with an older one.

  Raises `base.CheckpointError`: nodes do not see the same checkpoints.
  """
  statuses = _without_damaged(statuses)
  newest = max(statuses.values(), key=lambda s: s.version)
  current = {
      n: s for n, s in statuses.items() if s.rollbacks == newest.rollbacks
  }
  steps = max(s.steps for s in current.values())
  refused = {n for n, s in current.items() if 0 <= s.steps < steps - 1}
  statuses = {n: s for n, s in statuses.items() if n not in refused}
  held = {
      node: status.holdings
      for node, status in statuses.items()
      if status.steps == steps
  }
  layout = newest.layout
  if newest.steps < steps:
    layout = layout.committed()
  lost = layout.nodes - statuses.keys()
  if layout.roles:
    change = rules.lose(
        layout, statuses, zones=zones, leaving=leaving, holdings=held
    )
  else:
    change = rules.begin_anew(statuses, zones=zones, leaving=leaving)
  at_once = change.is_immediate
  return Agreement(
      steps=steps,
      known_version=newest.version,
      version=newest.version + bool(lost and at_once),
      rollbacks=newest.rollbacks,
      layout=change.layout if at_once else layout,
      holdings=(_find_valid(change.layout, held) if at_once else {}),
      lost=frozenset(lost),
      victims=layout.places_of(lost),
      rung=change.rung,
      reason=change.reason,
      change=None if at_once else change,
      restored=(
          newest_common({n: s.saved for n, s in statuses.items()})
          if change.rolls_back
          else 0
      ),
      is_fresh=not at_once
      or all(h == holdings_lib.NOTHING for h in held.values()),
      refused=frozenset(refused),
  )


def _without_damaged(statuses: Mapping[int, Status]) -> Mapping[int, Status]:
  """Returns the statuses of nodes that have just come, if all begin again."""
  steps = max(s.steps for s in statuses.values())
  if not any(steps in s.damaged and s.steps < steps for s in statuses.values()):
    return statuses
  return {
      node: Status(
          steps=-1,
          version=-1,
          rollbacks=0,
          layout=layout_lib.Layout(),
          holdings=holdings_lib.NOTHING,
          saved=tuple(step for step in status.saved if step != steps),
          boot_secs=status.boot_secs,
      )
      for node, status in statuses.items()
  }


def _find_valid(
    after: layout_lib.Layout, held: Mapping[int, holdings_lib.Holdings]
) -> dict[int, holdings_lib.Holdings]:
  """Returns what nodes can still use of what they hold.

  Residuals are of segments whose state they have, sums of those they compute.
  """
  computed = {
      (node, segment)
      for _, owners, _ in after.ways
      for segment, node in enumerate(owners)
  }
  known = computed | after.copies
  return {
      node: held.get(node, holdings_lib.NOTHING).limited(
          residuals={s for n, s in known if n == node},
          accumulated={s for n, s in computed if n == node},
      )
      for node in sorted({n for n, _ in known})
  }


def newest_common(seen: Mapping[int, Sequence[int]]) -> int:
  """Returns the step of the newest checkpoint that all nodes see; 0 if none do.

  Where there is none that all see, it is the newest that anybody sees: one has
  just become complete, and perhaps replaced what others saw before. Who cannot
  read it has another folder, and fails.
  """
  common = set.intersection(*map(set, seen.values()))
  return max(common or itertools.chain(*seen.values()), default=0)
