"""One step of training as a transaction, on the nodes of one member.

Until the vote no phase changes the state, so lost results can be recomputed;
after the vote the update is local and needs no peer. Decisions are pure functions of
the gathered sums, so that all members agree even if one dies meanwhile: the scale of
the gradient, and whether the step may change the state at all.

  compute  rows of forward and backward passes, and the transfers between them
  ties     gradients of parameters shared by layers on different stages
  reduce   gradients summed over shares, in order, beside the accumulators
  norm     global norm of the gradient, for clipping
  refresh  replicas get the final gradients
  vote     all have finished the phases before: the step is committed
  apply    the update of every stage and replica
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import math
import time

import numpy as np

from bamboo_jax import base, config as config_lib
from bamboo_jax.accounting import account as account_lib
from bamboo_jax.checkpoint import arrays as layer_arrays, parts
from bamboo_jax.faults import faults as faults_lib
from bamboo_jax.recovery import durations, layout as layout_lib, slowness
from bamboo_jax.runtime import engine as engine_lib, node as node_lib
from bamboo_jax.runtime.phases import reduce, replicas, update
from bamboo_jax.runtime.profile import recorder as recorder_lib
from bamboo_jax.schedule import redundancy, timeline as timeline_lib
from bamboo_jax.training import cohort as cohort_lib, failures
from bamboo_jax.training.record import step_times
from bamboo_jax.training.setup import job as job_lib


@dataclasses.dataclass(frozen=True)
class Measured:
  """What was measured in a step: on the nodes of a member; or on all, see `join`.

  Attributes:
    passes: Time of passes, see `step_times`.
    span_secs: From the start of the step to the end of the last pass or transfer.
    sums_secs: Time of summing gradients, by segment, waiting for others included.
    owed: Start and end of owed passes, in seconds since they were planned, by
      view that lost a node.
    ran: Passes by node, see `executor.Filler.ran`.
    nodes: Times of the nodes; empty if passes are not measured.
  """

  passes: account_lib.NodeTime = account_lib.NodeTime()
  span_secs: float = 0.0
  sums_secs: Mapping[base.StageId, float] = dataclasses.field(default_factory=dict)
  owed: Mapping[base.ViewId, tuple[float, float]] = dataclasses.field(default_factory=dict)
  ran: Mapping[base.NodeId, redundancy.Ran] = dataclasses.field(default_factory=dict)
  nodes: slowness.Step = dataclasses.field(default_factory=dict)


def join(said: Iterable[Measured]) -> Measured:
  """Returns what all members have measured, from what each has."""
  said = list(said)
  sums_secs: dict[base.StageId, float] = {}
  owed: dict[base.ViewId, tuple[float, float]] = {}
  for one in said:
    for segment, secs in one.sums_secs.items():  # The last to arrive does not wait.
      sums_secs[segment] = min(secs, sums_secs.get(segment, secs))
    for view, (first, last) in one.owed.items():
      before = owed.get(view, (first, last))
      owed[view] = (min(first, before[0]), max(last, before[1]))
  return Measured(
      passes=sum((one.passes for one in said), account_lib.NodeTime()),
      span_secs=max((one.span_secs for one in said), default=0.0),
      sums_secs=sums_secs,
      owed=owed,
      ran={node: ran for one in said for node, ran in one.ran.items()},
      nodes={node: times for one in said for node, times in one.nodes.items()},
  )


@dataclasses.dataclass(frozen=True)
class LocalSums:
  """One member's part of the sums of a step.

  Attributes:
    squares: By stage, the squared norm of the gradient of each layer.
    loss: Sum of the losses, in nats, their weight, in tokens, and the sums of
      the metrics; None if the member hosts no last stage.
  """

  squares: Mapping[int, tuple[float, ...]]
  loss: tuple[float, ...] | None


@dataclasses.dataclass(frozen=True)
class StepSums:
  """The sums of a step.

  Attributes:
    loss: Sum of the losses, in nats.
    weight: Number of tokens, or of images or other samples, that count.
    scale: Factor of the gradients.
    grad_norm: Global norm of the mean gradient before clipping.
    metrics: Means of the metrics, in the order of `StageSpec.metrics`.
  """

  loss: float
  weight: float
  scale: float
  grad_norm: float
  metrics: tuple[float, ...] = ()

  @property
  def mean_loss(self) -> float:
    """Mean loss per token; not a number if no token counts."""
    return self.loss / self.weight if self.weight else math.nan

  @property
  def is_finite(self) -> bool:
    """Whether loss and gradient are finite, or no token counts."""
    is_finite = math.isfinite(self.mean_loss) and math.isfinite(self.grad_norm)
    return is_finite or not self.weight

  def unit(self, batch_size: int) -> str:
    """Returns "samples" if the weight is at most that; else "tokens"."""
    return "samples" if 0 < self.weight <= batch_size else "tokens"


def find_sums(engine: engine_lib.Engine) -> LocalSums:
  """Returns the sums over the local nodes, after the phase "reduce"; blocks."""
  return LocalSums(reduce.stage_norms(engine), reduce.loss(engine))


def add_up(said: Iterable[LocalSums], *, clip_norm: float | None) -> StepSums:
  """Returns the sums of a step from the parts `said` by all members.

  `clip_norm` is the largest norm of the mean gradient; None: no clipping.
  """
  said = list(said)
  loss, weight, *sums = next(s.loss for s in said if s.loss is not None)
  # Owners of a stage say the same.
  by_stage = {stage: own for s in reversed(said) for stage, own in s.squares.items()}
  squares = [square for _, own in sorted(by_stage.items()) for square in own]
  if not weight:
    nothing = (math.nan,) * len(sums)
    return StepSums(loss, weight, scale=0.0, grad_norm=math.nan, metrics=nothing)
  metrics = tuple(found / weight for found in sums)
  norm = math.sqrt(sum(np.asarray(squares, np.float64))) / weight
  if clip_norm is None or not norm > clip_norm:  # Also if it is not a number.
    return StepSums(loss, weight, 1.0 / weight, norm, metrics)
  return StepSums(loss, weight, clip_norm / norm / weight, norm, metrics)


def judge(
    step: base.StepId, sums: StepSums, options: config_lib.OptimizerSection, *, num_skipped: int
) -> str:
  """Returns why `step`, from 0, must not change the state; "" if it may.

  `num_skipped` steps in a row were skipped right before it. Raises
  `base.NonFiniteError` if the run must end.
  """
  trouble = f"loss={sums.mean_loss} grad_norm={sums.grad_norm}"
  reason = f"not finite: {trouble}"
  if not sums.weight:
    reason = "no token of the batch counts"
  elif options.on_nonfinite == "apply" or sums.is_finite:
    return ""
  elif options.on_nonfinite == "stop":
    raise base.NonFiniteError(
        f"Step {step + 1} has {trouble}, so training stops before its update. "
        "config.optimizer.on_nonfinite='skip' goes on without such steps."
    )
  if 0 < (most := options.most_skipped_steps) <= num_skipped + 1:
    before = step - num_skipped
    raise base.NonFiniteError(
        f"Training stops at step {step + 1}: all steps after step {before} "
        f"were skipped (config.optimizer.most_skipped_steps={most})"
        f", the last one because {reason}. Checkpoints up to step {before} are "
        "from before."
    )
  return reason


@dataclasses.dataclass(frozen=True)
class Vote:
  """A member's vote that it has finished all phases before the commit.

  Attributes:
    seen: Number of the newest view that it can work in.
    prints: Fingerprints of its state; None if they are not due.
    nonfinite: See `StepRunner.find_nonfinite`.
    save: Its report of checkpoints; see `checkpoint.writer`.
    stops: Whether it was asked to end the run after this step.
    at_risk: See `RunState.find_risk`.
    failure: An error of the user's code; then the step is not committed.
  """

  seen: base.ViewId
  measured: Measured = Measured()
  prints: replicas.Prints | None = None
  nonfinite: str = ""
  save: parts.PartsReport | None = None
  stops: bool = False
  at_risk: parts.Risk | None = None
  failure: failures.Failure = failures.Failure()


@dataclasses.dataclass(kw_only=True)
class StepRecord:
  """A step, as known to this member: complete once it is committed.

  Attributes:
    steps: Number of committed steps, with this one.
    view: Number of the view at its end.
    phase_secs: Time of each phase, repetitions included. Work is dispatched
      ahead, so a phase ends when the next had to wait for it.
    instructions: Times of those that have run on local nodes.
    start_secs: Start of the step, on `time.perf_counter`.
    idle_secs: Part of `secs` in which all nodes waited for others to join; the
      worker adds its waits.
    skipped: Why the step did not change the state; "" if it did.
    planned: Timelines planned at its start, by pipeline, of all nodes.
    measured: On all nodes; without values if this member did not get the votes.
    redundant: Effect of redundant forward passes that filled waits, with what was planned;
      empty without any.
  """

  steps: base.StepId
  view: base.ViewId = base.ViewId(0)
  sums: StepSums = StepSums(0.0, 0.0, scale=0.0, grad_norm=0.0)
  secs: float = 0.0
  phase_secs: dict[str, float] = dataclasses.field(
      default_factory=lambda: dict.fromkeys(faults_lib.PHASES, 0.0)
  )
  instructions: list[recorder_lib.MeasuredInstruction] = dataclasses.field(default_factory=list)
  start_secs: float = dataclasses.field(default_factory=time.perf_counter)
  idle_secs: float = 0.0
  skipped: str = ""
  planned: Sequence[timeline_lib.Timeline] = ()
  measured: Measured = Measured()
  redundant: Mapping[str, float] = dataclasses.field(default_factory=dict)
  recoveries: Sequence[durations.RecoveryTimes] = ()


class StepRunner:
  """Runs the phases of one step after the other; `record` is that of the present one."""

  record: StepRecord  # Once a step has begun.

  def __init__(self, job: job_lib.Job, given: job_lib.Environment) -> None:
    self._engine, self._cohort = job.engine, given.cohort
    self._options = job.config.optimizer
    self._check_every_steps = job.config.redundancy.check_every_steps
    self._num_microbatches = job.plan.batch.total_microbatches
    self.executor = job.make_executor(given)
    self._recorder = recorder_lib.Recorder()
    self._slow: dict[base.NodeId, faults_lib.Fault] = {}  # Nodes, by faults.

  def begin(
      self,
      step: base.StepId,
      feed: node_lib.FeedFn,
      due: faults_lib.FaultsDue,
      num_skipped: int = 0,
  ) -> None:
    """Starts `step`, from 0; `feed` returns the data of its microbatches.

    `num_skipped` steps in a row were skipped before.
    """
    self._step, self._num_skipped, self._due = step, num_skipped, due
    self._slow_down(due.slowed)
    self._waited_secs, self._starved_secs = self._count_waits(), step_times.starved_secs()
    self.record = StepRecord(steps=base.StepId(step + 1))
    self._engine.begin_step(step, feed, num_microbatches=self._num_microbatches)
    self.executor.begin(step, feed)

  def plan(
      self,
      timelines: Sequence[timeline_lib.Timeline],
      filling: redundancy.StepFilling | None = None,
  ) -> None:
    """Sets the timelines of the rest of the step; see `executor.Executor`."""
    self.executor.plan(timelines, filling)
    self.record.planned = self.record.planned or timelines  # Later plans are of the rest.

  #             member 0                      member 1
  #  compute    rows ---- transfers ----      rows
  #  ties       -------- gradients of tied parameters --------
  #  reduce     -------- shares of each stage, in order -------
  #  norm       gather: squares, loss         gather: squares, loss
  #             scale, skipped? = f(all)      the same
  #  refresh    -------- final gradients to shadows -----------  unless skipped
  #  vote       gather: a vote                gather: a vote
  #             ========================================== commit
  #  apply      update                        update             unless skipped
  #
  # If a node dies above the line, the others run the owed instructions in the
  # next view. If one dies below it, some members may have all votes; the others
  # learn of the commit from those, see `recovery.agreement`.

  def run_until_vote(self) -> None:
    """Runs the rest of the step up to the vote.

    Raises:
      base.NonFiniteError: See `sums.judge`.
      Exception: A transfer failed, or a node of the view was lost. JAX does not
        document which exceptions it raises when a peer dies.
    """
    engine, record = self._engine, self.record
    with self._phase("compute"):
      strike = lambda node: self._strike(self._due.pop_at_instruction(node))
      self.executor.compute(strike, self._recorder)
      ran = self._recorder.finish()  # Also what ran in an attempt that was abandoned.
      record.instructions += [one for one in ran if one.start_secs >= record.start_secs]
    with self._phase("ties"):
      reduce.tie(engine)
    with self._phase("reduce"):
      reduce.reduce(engine)
      engine.wait()
    with self._phase("norm"):
      mine, key = find_sums(engine), f"sums {self._step}"
      begin_secs = time.perf_counter()
      said = self._cohort.gather(key, mine)
      self._waited_secs -= time.perf_counter() - begin_secs
      record.sums = add_up(said.values(), clip_norm=self._options.clip_norm)
      record.skipped = judge(self._step, record.sums, self._options, num_skipped=self._num_skipped)
    with self._phase("refresh"):
      if not record.skipped:
        update.refresh(engine, record.sums.scale)
      engine.wait()

  def vote(self, vote: Vote) -> dict[base.NodeId, Vote]:
    """Returns the votes of all members, which commit the step; blocks.

    Raises `base.ReplicaMismatchError` if copies of a layer differ.
    """
    with self._phase("vote"):
      votes = self._cohort.gather(f"vote {self._step}", vote)
      self._cohort.settled()
    if told := [v.prints for v in votes.values() if v.prints is not None]:
      replicas.compare(told)
    return votes

  def apply(self) -> None:
    """Updates the state of local nodes after the commit; donates it."""
    with self._clock("apply"):
      self._strike(self._due.pop_at_phase("apply"))
      self.bury()
      if not self.record.skipped:
        update.apply(self._engine, self.record.sums.scale)
      self._engine.wait()

  def measure(
      self, layout: layout_lib.Layout, recoveries: Sequence[durations.RecoveryTimes]
  ) -> Measured:
    """Returns what local nodes have measured so far; `recoveries` are in this step."""
    record, nodes = self.record, self._cohort.hosted & layout.nodes
    ran, start_secs, phase_secs = record.instructions, record.start_secs, record.phase_secs
    owed, spans = step_times.find_owed([*ran, *self.executor.in_segments], recoveries, layout)
    passes = step_times.find_passes(ran, owed)
    end_secs = max((one.end_secs for one in ran), default=start_secs)
    return Measured(
        passes=self.executor.planned_passes(phase_secs["compute"])
        or step_times.sum_passes(passes, nodes),
        span_secs=end_secs - start_secs,
        sums_secs={
            segment: phase_secs["ties"] + phase_secs["reduce"]
            for way in layout.ways
            for segment, node in base.by_stage(way.owners)
            if node in nodes
        },
        owed=spans,
        ran=self.executor.filler.ran(ran),
        nodes=step_times.find_nodes(
            *(ran, passes),
            secs=time.perf_counter() - start_secs,
            waited_secs=self._count_waits() - self._waited_secs,
            starved_secs=step_times.starved_secs() - self._starved_secs,
            is_alone=len(self._engine.nodes) == 1,
        ),
    )

  def finish(self, measured: Measured, recoveries: Sequence[durations.RecoveryTimes]) -> StepRecord:
    """Returns the record of the committed step, which ends now, and learns from it."""
    record, filler = self.record, self.executor.filler
    filling = filler.filling
    if filling and (filled := filling.find_effect(measured.ran)) is not None:
      filler.learn(filled.stretch)
      planned = vars(filling.predicted).items()
      record.redundant = vars(filled) | {f"planned_{name}": value for name, value in planned}
    record.view, record.measured = self._cohort.view.number, measured
    record.recoveries, record.secs = recoveries, time.perf_counter() - record.start_secs
    return record

  def take_prints(self) -> replicas.Prints | None:
    """Returns fingerprints for the vote, None if they are not due; blocks."""
    every_steps = self._check_every_steps
    if not every_steps or self._step % every_steps:
      return None
    with self._clock("refresh"):
      return replicas.take_prints(self._engine, self._step)

  def find_nonfinite(self) -> str:
    """Returns the name of a local state array with NaN or infinity; "" if none.

    Searches only if loss or gradient of this step are not finite; copies one
    array at a time to the host.
    """
    if self.record.sums.is_finite:
      return ""
    layers = self._engine.layer_states().items()
    arrays = {name: layer_arrays.name_leaves(s) for name, s in layers}
    return layer_arrays.find_nonfinite(arrays) or ""

  def bury(self) -> None:
    """Deletes the arrays of local nodes that have died."""
    self._recorder.bury(dead := self._engine.nodes.keys() - self._cohort.hosted)
    for node in dead:
      self._engine.kill(node)

  def close(self) -> None:
    """Ends the measuring thread."""
    self._recorder.close()

  def _count_waits(self) -> float:
    """Returns the time that this process has waited for values of others so far."""
    return exchange.waited_secs if (exchange := self._engine.exchange) else 0.0

  def _slow_down(self, slowed: Iterable[faults_lib.Due]) -> None:
    """Slows local nodes down as faults demand, and ends that when it is due."""
    for due in slowed:
      for victim in cohort_lib.find_victims(due, self._cohort.view):
        self._slow[victim.number] = due.fault
    for number, slow in self._slow.items():
      is_over = slow.until is not None and self._step >= slow.until
      if node := self._engine.nodes.get(number):
        node.slow_factor = 1.0 if is_over else slow.factor

  @contextlib.contextmanager
  def _phase(self, phase: str) -> Iterator[None]:
    """Enters a phase: measures it, injects due faults, checks the view."""
    with self._clock(phase):
      self._strike(self._due.pop_at_phase(phase))
      self._cohort.check()
      yield

  @contextlib.contextmanager
  def _clock(self, phase: str) -> Iterator[None]:
    start = time.perf_counter()
    try:
      yield
    finally:
      self.record.phase_secs[phase] += time.perf_counter() - start

  def _strike(self, due: Iterable[faults_lib.Due]) -> None:
    for fault in due:
      self._cohort.strike(fault)
