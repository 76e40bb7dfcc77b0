"""One member's records of a run: log, checkpoints, recoveries, summary."""

from collections.abc import Iterable, Mapping
import contextlib
import dataclasses
import time
from typing import Any

from bamboo_jax import base
from bamboo_jax.accounting import account as account_lib
from bamboo_jax.checkpoint import digest
from bamboo_jax.cluster import views
from bamboo_jax.recovery import agreement as agreement_lib, assignment, durations, survival
from bamboo_jax.schedule import redundancy
from bamboo_jax.train import failures, run_state as run_state_lib, step as step_lib
from bamboo_jax.train.record import outputs as outputs_lib, slow_nodes, step_times

_REPORTED = 5  # Number of recoveries that `bamboo status` shows.
_MOST_TAKERS = 4  # Number of nodes listed with their new stage.


class RunLog:
  """Makes a member's votes, and records its events through `outputs`."""

  def __init__(
      self, state: run_state_lib.RunState, outputs: outputs_lib.Outputs, slow: str = "report"
  ) -> None:
    """`slow` is the option `config.recovery.slow`."""
    self._slow = slow_nodes.SlowNodes(state, outputs, response=slow)
    self._outputs = outputs
    self._writer = state.writer
    self._cohort = state.cohort
    self._engine = state.engine
    self._state = state
    self._ladder = dataclasses.asdict(state.rules.ladder)
    self._recoveries: list[durations.RecoveryTimes] = []
    self._names: dict[base.NodeId, str] = {}
    self._saved_in = base.ViewId(0)  # The view in which copies were at risk.

  def roll_back(self, steps: base.StepId) -> None:
    """Records that all steps after the first `steps` will be repeated."""
    self._outputs.roll_back(steps)
    for recovery in self._recoveries:
      if recovery.step_end_at_secs is None:
        recovery.step = base.StepId(steps + 1)

  def meet(self, view: views.View) -> None:
    """Records the names of a view's members; keeps those of dead owners."""
    self._slow.forget()
    roles = self._state.layout.nodes
    kept = {n: name for n, name in self._names.items() if n in roles}
    self._names = kept | {m.number: m.name for m in view.members}

  def add_loss(
      self,
      agreement: agreement_lib.Agreement,
      *,
      silent_secs: Iterable[Mapping[base.NodeId, float]],
      agreed_at_secs: float,
  ) -> None:
    """Records the loss of nodes that led to the present view.

    `silent_secs` is `Cohort.silent_secs` of each member; `agreed_at_secs` is on
    `time.perf_counter`.
    """
    view, lost = self._cohort.view.number, tuple(sorted(agreement.lost))
    heirs: tuple[str, ...] = ()
    if agreement.rung == "shadow":
      owners, victims = agreement.layout.owners, agreement.victims
      found = (owners[v.pipeline][v.stage] for v in victims)
      heirs = tuple(self._name(node) for node in found if node is not None)
    self._recoveries.append(
        durations.RecoveryTimes(
            step=base.StepId(agreement.steps + 1),
            view=view,
            nodes=lost,
            names=tuple(map(self._name, lost)),
            victims=tuple(map(str, agreement.victims)),
            rung=agreement.rung,
            heirs=heirs,
            reason=agreement.reason,
            view_at_secs=self._cohort.arrived_secs(view),
            died_at_secs=self._cohort.died_secs(view),
            silence_to_view_secs=durations.longest_silence(lost, silent_secs),
            agreed_at_secs=agreed_at_secs,
        )
    )

  def explain_view(self, agreement: agreement_lib.Agreement) -> None:
    """Shows why training pauses for a new view."""
    if not agreement.lost:
      self._outputs.explain(self._cohort.view.reason)
      return
    loss = dataclasses.asdict(self._recoveries[-1])
    then = durations.describe_answer(loss)
    if agreement.change and agreement.change.rolls_back:
      steps = agreement.restored
      then = f"restoring step {steps}" if steps else "beginning from the start"
    self._outputs.explain(f"{durations.describe_loss(loss)} died; {then}", at_once=True)

  def explain_change(self, change: assignment.Decision) -> None:
    """Shows why training pauses for a change of the layout."""
    takers = [
        f"{self._name(node)} takes stage {place}"
        for node, place in change.layout.find_takers(self._state.layout)
    ]
    if (num_more := len(takers) - _MOST_TAKERS) > 0:
      takers = [*takers[:_MOST_TAKERS], f"{num_more} more"]
    why = "; ".join([", ".join(takers) or change.reason, "programs are loaded"])
    self._outputs.explain(f"{change.rung}: {why}")

  def note_ready(self) -> None:
    """Records that the rest of the step is planned, for all losses so far."""
    now = time.perf_counter()
    for recovery in self._recoveries:
      if recovery.ready_at_secs is None:
        recovery.ready_at_secs = now

  def vote(
      self,
      *,
      seen: base.ViewId,
      ready: int,
      stops: bool,
      failure: failures.Failure,
      step: step_lib.StepRunner,
  ) -> step_lib.Vote:
    """Returns this member's vote on a `step` that has run up to the vote.

    The other arguments are fields of `step.Vote`.
    """
    steps, layout = self._state.steps, self._state.layout
    measured = step.measured
    recent = self._recent(base.StepId(steps + 1))
    owed = {r.view: step_times.find_owed(measured, r, layout) for r in recent}
    end_secs = max((m.end_secs for m in measured), default=step.start_secs)
    return step_lib.Vote(
        seen=seen,
        ready=ready,
        passes=step.planned_passes
        or step_times.measure_passes(
            measured, nodes=self._cohort.hosted & layout.nodes, layout=layout, recoveries=recent
        ),
        span_secs=end_secs - step.start_secs,
        sums_secs=step_times.sums_of(
            step.sums_secs, nodes=self._cohort.hosted & layout.nodes, layout=layout
        ),
        owed={view: span for view, span in owed.items() if span},
        ran=step.executor.filler.ran(measured),
        prints=step.take_prints(),
        nonfinite=step.find_nonfinite(),
        save=self._writer.say(
            base.StepId(steps + 1),
            # A save that is due at a skipped step begins at the next good one.
            after=base.StepId(steps + 1 if step.num_skipped else steps - self._state.num_skipped),
        ),
        stops=stops,
        failure=failure,
        at_risk=self._find_risk(),
        nodes=step.nodes,
    )

  def commit(
      self, step: step_lib.StepRunner, votes: Mapping[base.NodeId, step_lib.Vote], *, saves: bool
  ) -> None:
    """Records a committed step; with `saves` a checkpoint may be started.

    `votes` is empty if this member has not received them.
    """
    now, steps = time.perf_counter(), self._state.steps
    recent = self._recent(steps)
    for recovery in recent:
      recovery.step_end_at_secs = now
      if votes and step.planned_passes is None:
        owed = [v.owed.get(recovery.view) for v in votes.values()]
        recovery.merge_owed(span for span in owed if span)
    self._outputs.write_step(
        step.result(
            passes=sum((v.passes for v in votes.values()), account_lib.NodeTime()),
            span_secs=max((v.span_secs for v in votes.values()), default=0.0),
            **self._find_filled(step, votes.values()),
            sums_secs=step_times.mean_sums_secs(
                (v.sums_secs for v in votes.values()), self._state.layout
            ),
            recoveries=tuple(recent),
            names=dict(self._names),
        )
    )
    if votes:
      self._slow.hear(vote.nodes for vote in votes.values())
    if votes and saves and self._has_owners():
      said = {n: vote.save for n, vote in votes.items() if vote.save}
      with self._outputs.during("checkpoint"):
        self._writer.hear(steps, said, **self._whose_state())
    if self._state.is_writer:
      last = [dataclasses.asdict(r) for r in self._recoveries[-_REPORTED:]]
      facts = {
          "steps": steps,
          "recoveries": last,
          "slow": [{"step": one.step, **one.values} for one in self._state.named[-_REPORTED:]],
          "metrics": self._outputs.shown,
          "totals": self._find_totals(),
          "ladder": self._ladder,
      }
      self._cohort.report("report", facts=facts)

  def add_evaluation(self, means: Mapping[str, float] | None) -> None:
    """Records the means of an evaluation; None if it has ended early."""
    if means is None:
      self._outputs.show("the evaluation has ended early")
      return
    self._outputs.write_event("eval", step=self._state.steps, values=means)

  def warn_of_save(self, step: base.StepId, text: str) -> None:
    """Records a failed save."""
    self._outputs.write_event("save_failed", step=step, values={"reason": text})

  def note_damaged(self) -> None:
    """Records the checkpoints that were damaged."""
    for step in self._state.damaged:
      values = {"checkpoint": step}
      self._outputs.write_event("damaged", step=self._state.steps, values=values)

  def save_at_risk(self, view: base.ViewId) -> None:
    """Saves now: all nodes with a copy of some segment will be preempted.

    All members call it after a commit, for the view that announces it. Blocks
    until the checkpoint is complete, because the nodes may not live until the
    next votes. Raises as `Cohort.gather`.
    """
    why = {"reason": "all nodes with a copy of some layers will be preempted"}
    self._outputs.write_event("saving", step=self._state.steps, values=why)
    with contextlib.suppress(base.CheckpointError):  # The writer has warned.
      self.save_last()
    self._saved_in = view

  def save_last(self) -> None:
    """Saves the state; blocks, see `checkpoint.writer.Writer.save_last`."""
    with self._outputs.during("checkpoint"):
      self._writer.save_last(
          self._state.steps,
          self._cohort.gather,
          waiting=self._cohort.check,
          num_skipped=self._state.num_skipped,
          **self._whose_state(),
      )

  def write_summary(self) -> None:
    """Writes the summary; all members call it to hash their layers.

    May be called again after a death. Raises as `Cohort.gather`.
    """
    self._outputs.flush()
    own = digest.digest_layers(self._engine.layer_states())
    said = self._cohort.gather("digests", own)
    if self._state.is_writer:
      digests = digest.Digests(
          {k: v for words in said.values() for k, v in words.params.items()},
          {k: v for words in said.values() for k, v in words.state.items()},
      )
      self._outputs.write_summary(self._state.steps, digests)

  def _name(self, node: base.NodeId) -> str:
    # A joining node may not have seen a view with a node that died.
    return self._names.get(node, f"node {node}")

  def _find_risk(self) -> base.ViewId:
    """Returns `step.Vote.at_risk`."""
    view = self._cohort.newest
    if not view.leaving:
      return views.EMPTY.number
    held = [h for h in self._state.layout.copies if h[0] in view.numbers]
    is_at_risk = view.number > self._saved_in and bool(survival.find_ending(held, view.leaving))
    return view.number if is_at_risk else views.EMPTY.number

  def _find_totals(self) -> dict[str, float]:
    """Returns counts since the start of this member, for Prometheus."""
    done = [r for r in self._recoveries if r.step_end_at_secs is not None]
    return {
        "deaths": sum(len(r.nodes) for r in done),
        "recoveries": len(done),
        "pause_seconds": sum(r["pause_secs"] for r in durations.report(map(vars, done), {})),
    }

  def _recent(self, step: base.StepId) -> list[durations.RecoveryTimes]:
    return [r for r in self._recoveries if r.step == step]

  def _find_filled(
      self, step: step_lib.StepRunner, votes: Iterable[step_lib.Vote]
  ) -> dict[str, redundancy.Effect]:
    """Returns `step.Committed.filled` and `predicted`; learns from the step."""
    ran = {node: ran for vote in votes for node, ran in vote.ran.items()}
    filled = step.executor.filler.find_effect(ran)
    predicted = step.executor.filler.predicted
    if filled is None or predicted is None:
      return {}
    step.executor.filler.learn(filled.stretch)
    return {"filled": filled, "predicted": predicted}

  def _has_owners(self) -> bool:
    """Returns whether all local owners live; each saves its stages."""
    host_of, me = self._cohort.host_of, self._cohort.number
    owners = self._state.layout.nodes
    return all(n in self._engine.nodes for n in owners if host_of(n) == me)

  def _whose_state(self) -> dict[str, Any]:
    """Returns arguments of the writer: members by stage, and local state."""
    states = {}
    for owners in self._engine.owners:
      for stage, node in base.by_stage(owners):
        if node in self._engine.nodes:
          states[stage] = self._engine.nodes[node].state.get(stage)
    host_of = self._cohort.host_of
    return {
        "view": self._cohort.view.number,
        "owners": [[host_of(n) for n in row] for row in self._engine.owners],
        "states": states,
    }
