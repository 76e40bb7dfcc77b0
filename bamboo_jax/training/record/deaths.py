"""The deaths that a member has seen, their times, and how it explains a pause.

A node that joins may never have heard the name of one that has died; see `base.logs`.
"""

from collections.abc import Iterable
import dataclasses
import time

from bamboo_jax import base
from bamboo_jax.base import logs, types
from bamboo_jax.recovery import agreement as agreement_lib, assignment, durations
from bamboo_jax.training import run_state as run_state_lib, step as step_lib

_MOST_TAKERS = 4  # Number of nodes listed with their new stage.


class Deaths:
  """The `recoveries` of a run since the start of this member.

  Attributes:
    absent: Nodes of the first layout that have not come, so they cannot have died.
  """

  def __init__(self, state: run_state_lib.RunState) -> None:
    self._state = state
    self.recoveries: list[durations.RecoveryTimes] = []
    self.absent: frozenset[base.NodeId] = frozenset()
    self._idle_secs: dict[base.ViewId, float] = {}  # Of recoveries whose step goes on.

  def roll_back(self, steps: base.StepId) -> None:
    """Notes that all steps after the first `steps` will be repeated."""
    for recovery in self.recoveries:
      if recovery.step_end_at_secs is None:
        recovery.step = base.StepId(steps + 1)

  def add(self, agreement: agreement_lib.Agreement, agreed_at_secs: float) -> None:
    """Notes the loss of nodes that led to the present view, if any, and who has come by now.

    Nodes lost in a view before, whose answer was not carried out, are lost still: they died
    once, and get the new answer. `agreed_at_secs` is on `time.perf_counter`.
    """
    cohort, change = self._state.cohort, agreement.change
    view, victims = cohort.view.number, agreement.victims
    new = {n for n in agreement.lost if n >= 0} - self.absent  # See `Layout.without_numbers`.
    self.absent -= cohort.view.numbers
    for recovery in self.recoveries:
      if recovery.step_end_at_secs is None and not agreement.lost.isdisjoint(recovery.nodes):
        recovery.rung, recovery.reason = change.rung, change.reason
        recovery.heirs = _find_heirs(agreement, recovery.places)
        new -= {*recovery.nodes}
        victims = tuple(place for place in victims if place not in recovery.places)
    if not new:
      return
    lost = tuple(sorted(new))
    self.recoveries.append(
        durations.RecoveryTimes(
            step=base.StepId(agreement.steps + 1),
            view=view,
            nodes=lost,
            names=tuple(map(logs.name_of, lost)),
            victims=tuple(map(str, victims)),
            rung=change.rung,
            heirs=_find_heirs(agreement, victims),
            reason=change.reason,
            view_at_secs=cohort.arrived_secs(view),
            # A cluster's launcher knows when it was.
            died_at_secs=None if self._state.engine.exchange else cohort.arrived_secs(view),
            silence_to_view_secs=cohort.view.silence_secs,
            agreed_at_secs=agreed_at_secs,
        )
    )

  def describe(self, agreement: agreement_lib.Agreement) -> str:
    """Returns how training goes on after the last loss."""
    loss = dataclasses.asdict(self.recoveries[-1])
    then = durations.describe_answer(loss)
    if agreement.change.rolls_back:
      steps = agreement.restored
      then = f"restoring step {steps}" if steps else "beginning from the start"
    return f"{durations.describe_loss(loss)} died; {then}"

  def describe_change(self, change: assignment.Decision) -> str:
    """Returns why training pauses for a change of the layout."""
    takers = [
        f"{logs.name_of(node)} takes stage {place}"
        for node, place in change.layout.find_takers(self._state.layout)
    ]
    if (num_more := len(takers) - _MOST_TAKERS) > 0:
      takers = [*takers[:_MOST_TAKERS], f"{num_more} more"]
    if change.rung == "none":  # All stages stay where they are.
      return "programs are loaded"
    why = "; ".join([", ".join(takers) or change.reason, "programs are loaded"])
    return f"{change.rung}: {why}"

  def note_ready(self) -> None:
    """Notes that the rest of the step is planned, for all losses so far."""
    now = time.perf_counter()
    for recovery in self.recoveries:
      if recovery.ready_at_secs is None:
        recovery.ready_at_secs = now

  def excuse(self, step: int, secs: float) -> None:
    """Leaves a wait for others to join out of the recoveries of a step before it."""
    for recovery in self.of_step(step):
      self._idle_secs[recovery.view] = self._idle_secs.get(recovery.view, 0.0) + secs

  def of_step(self, step: int) -> list[durations.RecoveryTimes]:
    """Returns those in `step`, which is not committed; not of an earlier time it was done."""
    return [r for r in self.recoveries if r.step == step and r.step_end_at_secs is None]

  def end_step(
      self, step: base.StepId, measured: step_lib.Measured | None
  ) -> list[durations.RecoveryTimes]:
    """Returns those of a step that is committed now.

    `measured` is None if owed passes are not known.
    """
    for recovery in (found := self.of_step(step)):
      idle_secs = self._idle_secs.pop(recovery.view, 0.0)
      recovery.step_end_at_secs = time.perf_counter() - idle_secs
      if measured is not None:
        span = measured.owed.get(recovery.view)
        recovery.set_owed(span)
    return found

  def find_totals(self) -> dict[str, float]:
    """Returns counts since the start of this member, for Prometheus."""
    done = [r for r in self.recoveries if r.step_end_at_secs is not None]
    return {
        "deaths": sum(len(r.nodes) for r in done),
        "recoveries": len(done),
        "pause_seconds": sum(r["pause_secs"] for r in durations.report(map(vars, done), {})),
    }


def _find_heirs(
    agreement: agreement_lib.Agreement, places: Iterable[types.Place]
) -> tuple[str, ...]:
  """Returns the names of the shadows that took places, if the answer is that they do."""
  if agreement.change.rung != "shadow":
    return ()
  found = map(agreement.layout.owners.get, places)
  return tuple(logs.name_of(node) for node in found if node is not None)
