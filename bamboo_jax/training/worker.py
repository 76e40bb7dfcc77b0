"""The worker: trains on the nodes of one member, together with all others.

When a node of the view is lost, the current step stops; all survivors end their
transfers, report what they hold, and agree on how to continue
(`recovery.agreement`): usually in the middle of the step, with the stages of
the dead nodes on their shadows.
"""

import collections
from collections.abc import Iterable, Mapping
from concurrent import futures
import contextlib
import dataclasses
import functools
import gc
import time
from typing import Any

from bamboo_jax import base
from bamboo_jax.base import threads
from bamboo_jax.checkpoint import arrays as layer_arrays, parts
from bamboo_jax.cluster import messages, views
from bamboo_jax.data import batches as batches_lib
from bamboo_jax.faults import faults as faults_lib
from bamboo_jax.recovery import (
    agreement as agreement_lib,
    layout as layout_lib,
    placement,
    slowness,
)
from bamboo_jax.runtime.phases import compile_ahead
from bamboo_jax.training import (
    background_compiler,
    cohort as cohort_lib,
    evaluation,
    failures as failures_lib,
    run_state as run_state_lib,
    step as step_lib,
)
from bamboo_jax.training.record import deaths as deaths_lib, journal as journal_lib
from bamboo_jax.training.setup import job as job_lib

# A death found this long after a failed transfer counts as its cause.
_EXPLAIN_SECS = 30.0
_PUSH_SECS = 5.0  # That a hand-over waits for a copy of the log; the node may end soon.
_REPORTED = 5  # Number of recoveries that `bamboo status` shows.

# Errors that no death explains.
_FINAL = (
    base.CheckpointError,
    base.CompilationError,
    base.EndedError,
    base.FencedError,
    base.NonFiniteError,
    base.ReplicaMismatchError,
)


class Worker:
  """One member of a run; construction opens the folder of checkpoints.

  Attributes:
    first_step: Number of steps done at the start.
  """

  def __init__(self, job: job_lib.Job, given: job_lib.Environment) -> None:
    config, cohort, engine = job.config, given.cohort, job.engine
    self._config = config
    self._job = job
    self._given = given
    self._cohort = cohort
    self.engine = engine
    self._step = step_lib.StepRunner(job, given)
    self._writer = job.make_writer(
        given,
        warn=lambda step, text: self._journal.write_event(
            "save_failed", step=step, values={"reason": text}
        ),
    )
    self.state = run_state_lib.RunState(
        engine, cohort, rules=job.rules, writer=self._writer, cluster=config.cluster
    )
    self._journal = journal_lib.Journal(job, given, self.state)
    self._deaths = deaths_lib.Deaths(self.state)
    num_judged = slowness.NUM_SKIPPED + slowness.NUM_KEPT
    self._times = collections.deque[slowness.Step](maxlen=num_judged)  # Of steps in this view.
    self._compiler = background_compiler.BackgroundCompiler(self.state, self._step.executor)
    self._data = failures_lib.SafeData(job.task, cohort, self._journal.failures)
    self._begun, self._saves_at_stop = -1, False
    self._uploaded: dict[str, Any] = {}  # As told last.
    self._told_of = views.EMPTY.number  # The view whose risk was told last.
    self._failed = failures_lib.Failure()  # The one that ends the run.
    self._rules = job.rules
    self._plans = layout_lib.StepPlans(job.rules.plan, fills=job.fills_waits)

  def run(self, stop_at: int | None = None) -> bool:
    """Trains until all steps are done; returns whether they are.

    `stop_at` ends it after that many steps instead, without a final checkpoint.
    Raises one of `_FINAL`, or what no death explains.
    """
    with contextlib.ExitStack() as stack:
      for part in (self._journal, self._step, self._compiler):
        stack.callback(part.close)
      num_steps = self._config.num_steps
      self._last_step = min(num_steps, num_steps if stop_at is None else stop_at)
      self._stop_at = self._last_step
      self._prepare(self._cohort.wait_start())
      self.first_step = self.state.steps
      if self._given.prefetches and self.state.steps < self._stop_at:
        self._data.source = stack.enter_context(
            batches_lib.Prefetcher(self._job.task.batches, first_step=self.state.steps)
        )
      # A full collection visits hundreds of thousands of objects: 80 to 190 ms in a step.
      gc.freeze()
      stack.callback(gc.unfreeze)
      self._cohort.enter()
      if self.state.steps >= 0:  # It begins the run, perhaps before all nodes are here.
        self._deaths.absent = self.state.layout.nodes
      go_on = self._regroup
      while True:
        try:
          go_on()
          if self.state.steps >= self._stop_at:
            return self._finish()
          go_on = self._train_step
        except base.NonFiniteError:
          self._writer.close()  # Completes a save of the good state.
          raise
        except _FINAL:
          raise
        except Exception as error:  # JAX raises various types when a peer dies.
          self._recover(error)
          go_on = self._regroup

  def _prepare(self, start: cohort_lib.Start) -> None:
    """Loads state and programs before this member joins its first view."""
    state = self.state
    if start.layout:
      state.layout = start.layout
      self._compiler.prepare(start.members | self._cohort.hosted)
    elif not start.is_restart:  # Otherwise the survivors choose the layout.
      if steps := max(self._writer.steps(), default=0):
        self._journal.explain(f"restoring step {steps}")
      state.begin(self._job.first_layout)
      self._journal.begin(state.steps)
      self._note_damaged()
    if state.steps < self._config.num_steps:
      self._journal.explain("the programs of the first step are compiled")
      self._compile()

  def _compile(self) -> None:
    """Compiles the programs of units for all roles, and the executor's for the present ones."""
    compile_ahead.compile_all(
        self.engine,
        self._step.executor.jobs(self.engine.lines),
        tell=self._journal.count_compiled,
        evaluate=self._config.evaluate.every_steps > 0,
    )

  def _compile_alone(self) -> None:
    """Compiles what a new layout needs, unless others wait: `follow` does it then."""
    if self.state.layout.nodes <= self.engine.nodes.keys():
      self._compile()

  # One step after the other.

  def _train_step(self) -> None:
    """Runs a step or its rest, and starts the next one."""
    step, state = self._step, self.state
    step.run_until_vote()
    self._wait_for_joins()
    # A save that is due at a skipped step begins at the next good one.
    after = state.steps + 1 if step.record.skipped else state.steps - state.num_skipped
    vote = step_lib.Vote(
        seen=self._compiler.newest_ready(self._data.failures),
        measured=step.measure(state.layout, self._deaths.of_step(state.steps + 1)),
        prints=step.take_prints(),
        nonfinite=step.find_nonfinite(),
        save=self._writer.say(base.StepId(state.steps + 1), after=base.StepId(after)),
        stops=self._given.stops(),
        at_risk=state.find_risk(),
        failure=self._data.failures.first,
    )
    votes = step.vote(vote)
    if self._decide_on(vote.failure for vote in votes.values()):
      return
    if name := next(filter(None, (vote.nonfinite for vote in votes.values())), None):
      raise base.NonFiniteError(
          f"Training stops before step {state.steps + 1}: {name} is not finite, so no "
          "step can succeed and no checkpoint would be saved. Earlier "
          "checkpoints are not affected."
      )
    self._commit(votes)
    if any(vote.stops for vote in votes.values()):
      self._stop_at, self._saves_at_stop = state.steps, True
      return
    found = parts.decide_exit([vote.at_risk for vote in votes.values() if vote.at_risk])
    if found and state.steps < self._stop_at:
      if found.view > self._told_of:
        self._told_of = found.view
        self._journal.write_event("saving", step=state.steps, values={"reason": found.text})
      if found.saves:  # At once, as the nodes may not live until the next votes.
        with self._journal.during("checkpoint"), contextlib.suppress(base.CheckpointError):
          state.save_last(found.leaving, name=f"save for {found.view}:")  # It has warned.
        state.saved_in = found.view
    self._compiler.follow()
    self._evaluate()
    if self._saves_at_stop:  # It was asked to end meanwhile.
      return
    seen = min(vote.seen for vote in votes.values())
    with self._journal.during("recovery"):
      if seen > self._cohort.view.number:
        self._cohort.adopt(seen)
        return self._regroup()  # The same calls as joining nodes make.
      self._improve()
    self._begin()

  def _decide_on(self, said: Iterable[failures_lib.Failure]) -> bool:
    """Ends the run, or failed members, see `failures`; False if none failed."""
    if not (failed := [failure for failure in said if failure.text]):
      return False
    self._begun = -1  # What the failed ones sent is wrong.
    steps = self.state.steps
    self._failed = failures_lib.decide(failed, self._data, steps=steps)
    self._stop_at, self._saves_at_stop = steps, steps > 0
    return True

  def _wait_for_joins(self) -> None:
    due = faults_lib.find_joins(self._given.faults, step=self.state.steps + 1)
    if due and (num := [*map(self._cohort.strike, due)].count(False)):
      self._journal.explain(f"the faults replace nodes: waiting for {num} more to join")
      since_secs = time.perf_counter()
      try:
        self._cohort.wait_members(len(self._cohort.view.members) + num)
      finally:  # A node may die meanwhile.
        secs = time.perf_counter() - since_secs
        self._step.record.idle_secs += secs
        self._deaths.excuse(self.state.steps + 1, secs)
      newest = self._cohort.newest
      self._compiler.prepare(newest.numbers, newest.number)

  def _commit(self, votes: Mapping[base.NodeId, step_lib.Vote]) -> None:
    """Applies a step that all members have voted for; it must not fail.

    `votes` is empty if this member has not received them.
    """
    step, state = self._step, self.state
    step.apply()
    state.steps = base.StepId(state.steps + 1)
    state.num_skipped = state.num_skipped + 1 if step.record.skipped else 0
    state.damaged = ()  # Its step may be saved again.
    measured = step_lib.join(vote.measured for vote in votes.values())
    found = self._deaths.end_step(state.steps, measured if votes else None)
    self._journal.write_step(step.finish(measured, found))
    if votes:
      self._name_slow(measured.nodes)
      if not self._is_stopped():
        with self._journal.during("checkpoint"):
          state.hear_saves({n: vote.save for n, vote in votes.items() if vote.save})
    if state.is_writer:
      facts = {
          "steps": state.steps,
          "recoveries": [dataclasses.asdict(r) for r in self._deaths.recoveries[-_REPORTED:]],
          "slow": [{"step": one.step, **one.values} for one in state.named[-_REPORTED:]],
          "metrics": self._journal.shown,
          "totals": self._deaths.find_totals(),
          "ladder": dataclasses.asdict(self._job.rules.ladder),
          "uploaded": self._note_upload(),
      }
      self._cohort.say(report=facts)

  def _name_slow(self, times: slowness.Step) -> None:
    """Names the nodes that are slow after a step, by the times of all; as all members do.

    A local one leaves if so configured, and if the others suffice without it.
    """
    cohort, state = self._cohort, self.state
    self._times.append(times)
    named, hosts = {one.number for one in state.named}, [m.host for m in cohort.view.members]
    found = slowness.find_slow([*self._times][slowness.NUM_SKIPPED :])
    for node in [one for one in found if one not in named]:
      (member,) = [m for m in cohort.view.members if m.number == node]
      before = sum(one.host == member.host for one in state.named)
      one = slowness.Named(
          step=state.steps,
          number=node,
          node=member.name,
          host=member.host,
          factor=round(found[node], 2),
          busy_ms=round(1e3 * times[node].busy_secs, 1),
          # Not on a machine of several nodes.
          named_before=before if hosts.count(member.host) == 1 else 0,
      )
      state.named += (one,)
      self._journal.write_event("slow", step=state.steps, values=one.values)
      stay = cohort.newest.numbers - {*cohort.newest.leaving, node}
      if self._config.recovery.slow == "remove" and node in cohort.hosted:
        with contextlib.suppress(base.InfeasibleError):  # They are too few for a pipeline.
          partitions = state.rules.planner.partitions(len(stay))
          if len(stay) >= sum(p.num_stages for p in partitions):
            why = f"it is {found[node]:.1f} times as slow as it should be"
            cohort.say(node, notice=why)

  def _note_upload(self) -> dict[str, Any]:
    """Returns the last upload of a checkpoint, {} without any; writes it once."""
    if (uploaded := self._writer.uploaded) != self._uploaded:
      self._uploaded = uploaded
      self._journal.write_event("uploaded", step=self.state.steps, values=uploaded)
    return uploaded

  def _is_stopped(self) -> bool:
    return self._config.num_steps > self.state.steps == self._stop_at

  def _evaluate(self) -> None:
    """Evaluates if that is due; a death cancels it."""
    steps, every_steps = self.state.steps, self._config.evaluate.every_steps
    if not every_steps or steps % every_steps or self._is_stopped():
      return
    self._journal.explain(f"evaluating after step {steps}", step=steps)
    with self._journal.during("useful"):
      means, stops = evaluation.run(self._job, self._data, self._given, step=steps)
    if means is None:
      self._journal.show("the evaluation has ended early")
    else:
      self._journal.write_event("eval", step=steps, values=means)
    if stops:
      self._stop_at, self._saves_at_stop = steps, True

  def _begin(self) -> None:
    step, layout = self.state.steps, self.state.layout
    if step >= self._stop_at:
      return
    self._begun = step
    self._step.begin(
        step,
        functools.partial(self._data.microbatch, step),
        faults_lib.FaultsDue(
            self._given.faults, step=step, owners=layout.owners, hosted=self._cohort.hosted
        ),
        self.state.num_skipped,
    )
    self._step.plan(*self._plans.whole(layout))

  # Changes of the view.

  def _recover(self, error: Exception) -> None:
    """Adopts a view without the dead; raises `error` if no node died."""
    is_users = failures_lib.is_users(error)
    view = self._cohort.wait_change(0.0 if is_users else _EXPLAIN_SECS)
    if view is None and is_users:
      failures_lib.end_run(self._cohort, base.describe_error(error), error)
    if view is None:
      raise error
    if self._cohort.take_retracted():
      self._begun = self.state.steps - 1  # The step runs from its start.
    self._step.bury()
    # Members may have received different sets of votes.
    self._stop_at, self._saves_at_stop = self._last_step, False
    self._failed = failures_lib.Failure()  # Of a node that may have died; others say theirs again.
    self._writer.abandon()
    self._cohort.adopt(view.number)

  #   dead         me                        others
  #    x           |--- status ------------->|    1. steps done, data held
  #                |    agree()              |    2. pure: same in, same out
  #                |    commit, if others did|    3. all at the same step
  #                |--- moved v ------------>|    4. only if state must move
  #                |    plan the rest, go on |    5.
  #
  # A death in 1 to 4 restarts this in the next view. In 4 the layout is valid
  # if any member received all reports; the others have fetched their state and
  # learn of it from `known_version`. Old attempts' messages are dropped.

  def _regroup(self) -> None:
    """Agrees with all members of the adopted view on how to continue."""
    cohort, state = self._cohort, self.state
    zones, before = cohort_lib.zones_of(cohort.view), self._rules
    self._rules = self._job.rules.among(zones)
    if self._rules is not before:
      self._plans = layout_lib.StepPlans(self._rules.plan, fills=self._job.fills_waits)
    self._times.clear()  # So that all members judge equally.
    cohort.collect_addresses()
    is_begun = self._begun == state.steps
    held = self._step.executor.holdings(is_begun=is_begun)
    since = self._given.started_secs
    statuses = [*cohort.gather("status", state.status(held, since_secs=since)).values()]
    agreed_at_secs = time.perf_counter()
    agreement = agreement_lib.agree(statuses, self._rules, zones=zones, leaving=cohort.view.leaving)
    if agreement.refused & cohort.hosted:
      raise base.NodeFailedError(
          f"This node finds checkpoints up to step {state.steps}, other nodes "
          f"up to {agreement.steps}; all nodes need the same workdir."
      )
    self._deaths.add(agreement, agreed_at_secs)
    known = {*state.damaged, *(d for s in statuses for d in s.damaged)}
    state.damaged = tuple(sorted(known))
    self.engine.links.drain()
    have_gone_back = agreement.rollbacks > state.rollbacks
    state.catch_up(agreement, commit=lambda: self._commit({}))
    if have_gone_back:  # The others have; this member missed it.
      self._journal.roll_back(agreement.steps)
      self._deaths.roll_back(agreement.steps)
    cohort.settled()
    boot_secs = {n: s.boot_secs for s in statuses for n in s.holdings}
    self._journal.welcome(boot_secs, in_step=self._begun == state.steps)
    if self._begun >= 0 and agreement.lost:
      self._journal.explain(self._deaths.describe(agreement), at_once=True)
    elif self._begun >= 0:
      self._journal.explain(cohort.view.reason)
    has_change = not agreement.change.is_immediate
    if has_change and not agreement.change.layout.pipelines:
      # The next join comes early: without it no later step can run.
      due = faults_lib.find_joins(self._given.faults, after=self.state.steps)
      all(map(cohort.strike, due))  # Up to the first new one.
      state.wait_for_nodes(agreement, explain=self._journal.explain_wait)
      return self._regroup()
    if has_change:
      state.carry_out(agreement.change, restored=agreement.restored)
      if not agreement.layout.roles:
        self._journal.begin(state.steps)
      elif agreement.change.rolls_back:
        self._journal.roll_back(state.steps)
        self._deaths.roll_back(state.steps)
      self._note_damaged()
      self._compile_alone()
    elif agreement.is_fresh and not agreement.lost:
      self._improve()  # A newcomer may take a place.
    if self._begun < 0:
      self._tell_of_regions()
    self._plan_rest(agreement)
    if agreement.lost:
      self._deaths.note_ready()

  def _tell_of_regions(self) -> None:
    """Tells what the link between regions costs, or that it is not known."""
    zones = cohort_lib.zones_of(self._cohort.view).values()
    names = sorted({*map(placement.region_of, zones)})
    whole = [p for p in self.state.layout.pipelines if not p.vacant]
    kind, text = journal_lib.CHANGED, self._rules.predictor.describe_crossing(whole)
    if len(names) > 1 and self._config.plan.region_link is None:
      kind, text = journal_lib.WARNING, (
          f"There are nodes in the regions {', '.join(map(repr, names))}, but links between them "
          "count as any others: set config.plan.region_latency_ms and config.plan.region_mbits."
      )
    if text:
      self._journal.write_event(kind, step=self.state.steps, values={"text": text})

  def _note_damaged(self) -> None:
    """Notes the checkpoints that were damaged."""
    for step in self.state.damaged:
      self._journal.write_event("damaged", step=self.state.steps, values={"checkpoint": step})

  def _plan_rest(self, agreement: agreement_lib.Agreement) -> None:
    if self._begun != self.state.steps or agreement.is_fresh:
      self._begin()
    layout = self.state.layout
    if agreement.is_fresh:
      return
    if not self._step.executor.can_continue():
      self._step.plan(self._plans.whole(layout)[0])
      return
    try:
      self._step.plan(self._plans.rest(layout, agreement.holdings))
    except base.InfeasibleError:  # On all members: a value in flight was lost,
      self._begin()  # and no survivor has a copy.

  def _improve(self) -> None:
    """Makes the change that is due between two steps."""
    cohort, state = self._cohort, self.state
    if change := state.find_change():
      self._journal.explain(self._deaths.describe_change(change))
      if cohort.view.leaving:  # Another member may write from now on, in another folder.
        futures.wait([threads.call_beside(self._journal.push, name="log")], _PUSH_SECS)
      state.carry_out(change)
      state.rung = change.rung
      self._compile_alone()
      state.compare_copies("change", self._journal.during)
    leaving = cohort.hosted & {*cohort.view.leaving}
    for node in sorted(leaving - state.layout.nodes):
      cohort.say(node, gone="handed over after a notice")

  def _finish(self) -> bool:
    """Writes checkpoint and summary at the end; blocks for all members."""
    self._given.check_fence(self._cohort.view)
    if not self._failed.text:  # The last commit may have failed.
      said = self._cohort.gather("failures", self._data.failures.first)
      self._decide_on(said.values())
    is_done = self.state.steps >= self._config.num_steps
    if self._config.redundancy.check_every_steps:
      self.state.compare_copies("end", self._journal.during)
    saves = is_done or self._saves_at_stop
    if saves:
      if (steps := self.state.steps) and self._begun >= 0:
        self._journal.explain(f"saving step {steps}", step=steps)
      with self._journal.during("checkpoint"):
        self.state.save_last()
      self._note_upload()
    if self._failed.text:
      self._cohort.gather("saved", None)
      failures_lib.end_run(self._cohort, self._failed.text, self._data.failures.error)
    self._journal.flush()
    said = self._cohort.gather("digests", layer_arrays.digest(self.engine.layer_states()))
    if self.state.is_writer:  # May come here again after a death.
      digests = {name: words for own in said.values() for name, words in own.items()}
      self._journal.write_summary(self.state.steps, digests)
    if saves:
      self._cohort.gather(messages.FINISHED, None)
      self._writer.close()
    if is_done:
      self._given.note_done(self._cohort.view)
    self._cohort.say(is_done=True)
    return is_done
