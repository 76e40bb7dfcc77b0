"""One step of training as a transaction.

A step runs through phases. Until the vote nothing of the state has changed, so
whatever is lost before can be computed again; after the vote the update is
local and cannot fail for want of a peer.

  compute  rows of forward and backward passes, and the transfers between them
  ties     gradients of parameters shared by layers on different stages
  reduce   gradients summed over shares, in order, beside the accumulators
  norm     global norm of the gradient, for clipping
  refresh  replicas get the final gradients
  vote     all have finished the phases before: the step is committed
  apply    the update of every stage and replica

When a node dies before the vote, its shadow owns its stage from then on. What
the step still owes is planned anew from what the nodes hold, and the phases
after `compute` are run again, from accumulators that they have left alone.
"""

from collections.abc import Iterable, Iterator, Sequence
import dataclasses
import itertools
import math
import time

import numpy as np

from bamboo_jax.faults import fault_file
from bamboo_jax.runtime import engine as engine_lib
from bamboo_jax.runtime import node as node_lib
from bamboo_jax.runtime.phases import apply
from bamboo_jax.runtime.phases import compile_ahead
from bamboo_jax.runtime.phases import reduce
from bamboo_jax.runtime.phases import refresh
from bamboo_jax.runtime.phases import ties
from bamboo_jax.runtime.profile import recorder as recorder_lib
from bamboo_jax.schedule import instruction as instruction_lib
from bamboo_jax.schedule import linearize
from bamboo_jax.train import failures
from bamboo_jax.train import membership as membership_lib

PHASES = fault_file.PHASES
Order = Iterable[tuple[int, instruction_lib.Instruction]]


@dataclasses.dataclass(frozen=True)
class StepResult:
  """What a committed step tells.

  Attributes:
    loss: Mean loss per token of the batch, in nats.
    weight: Number of tokens that the loss is a mean of.
    grad_norm: Global norm of the gradient before clipping; None if not clipped.
    secs: Time of the step.
    phase_secs: Time of each phase, what was run again included. Work is
      dispatched ahead, so a phase ends when the next had to wait for it.
    measured: When the instructions ran.
    start_secs: Time on `time.perf_counter` at which the step started.
    refresh_bytes: Bytes sent to keep replicas up to date.
    recoveries: The deaths in this step.
  """

  loss: float
  weight: float
  grad_norm: float | None
  secs: float
  phase_secs: dict[str, float]
  measured: Sequence[recorder_lib.Measured]
  start_secs: float
  refresh_bytes: int
  recoveries: tuple[failures.Recovery, ...]


class Transaction:
  """Runs steps on an engine.

  Args:
    engine: The nodes.
    membership: Who owns which stage, and how rows are planned.
    num_microbatches: Number of microbatches of a step in all pipelines.
    clip_norm: Largest global norm of the gradient, or None.

  Attributes:
    faults: Nodes that die on purpose; may be changed between steps.
    recoveries: The deaths in the last step, also if it was not committed.
  """

  def __init__(
      self,
      engine: engine_lib.Engine,
      *,
      membership: membership_lib.Membership,
      num_microbatches: int,
      clip_norm: float | None,
      faults: Sequence[fault_file.Fault] = (),
  ) -> None:
    if clip_norm is not None and not clip_norm > 0:
      raise ValueError(f"clip_norm must be positive or None, got {clip_norm}.")
    self._engine = engine
    self._membership = membership
    self._num_microbatches = num_microbatches
    self._clip_norm = clip_norm
    self.faults = faults
    self._recorder = recorder_lib.Recorder()
    self.recoveries: Sequence[failures.Recovery] = ()

  def run(self, step: int, feed: node_lib.FeedFn) -> StepResult:
    """Returns the result of `step` once it is committed.

    Args:
      step: Index of the step, from 0.
      feed: Returns the data of a microbatch of this step.

    Raises:
      base.UnrecoverableHereError: A stage has no copy left in its pipeline. The
        state is that before the step, where it is left at all.
    """
    attempt = _Attempt(
        self._engine,
        self._membership,
        self._recorder,
        step=step,
        injector=failures.Injector(
            [f for f in self.faults if f.step == step],
            owners=self._engine.owners,
        ),
    )
    self.recoveries = attempt.recoveries
    engine = self._engine
    engine.begin_step(step, feed, num_microbatches=self._num_microbatches)
    scale, norm, refresh_bytes = attempt.until_vote(self._scale)
    total, weight = reduce.loss(engine)
    attempt.apply(scale)
    result = attempt.result(
        loss=total / weight,
        weight=weight,
        grad_norm=norm,
        refresh_bytes=refresh_bytes,
    )
    if result.recoveries:
      # What new roles take, for the next death.
      compile_ahead.compile_all(engine, evaluate=False)
    return result

  def close(self) -> None:
    """Ends the threads that measure."""
    self._recorder.close()

  def _scale(self) -> tuple[float, float | None]:
    """Returns what gradients are multiplied by, and their norm before."""
    weight = reduce.loss(self._engine)[1]
    clips = self._clip_norm is not None
    squares = reduce.norms(self._engine) if clips else np.zeros(0)
    return find_scale(squares, weight=weight, clip_norm=self._clip_norm)


def find_scale(
    squares: np.ndarray, *, weight: float, clip_norm: float | None
) -> tuple[float, float | None]:
  """Returns what gradients are multiplied by, and their norm before.

  Args:
    squares: Squared norm of the gradient of each layer, float64, in model
      order, of the sum over all tokens.
    weight: Number of tokens.
    clip_norm: Largest norm of the mean gradient; None: no clipping, no norm.
  """
  if clip_norm is None:
    return 1.0 / weight, None
  norm = math.sqrt(sum(squares)) / weight
  if not norm > clip_norm:  # Also if it is not a number.
    return 1.0 / weight, norm
  return clip_norm / norm / weight, norm


class _Attempt:
  """One step on its way to the commit."""

  def __init__(
      self,
      engine: engine_lib.Engine,
      membership: membership_lib.Membership,
      recorder: recorder_lib.Recorder,
      *,
      step: int,
      injector: failures.Injector,
  ) -> None:
    self._engine = engine
    self._membership = membership
    self._recorder = recorder
    self._step = step
    self._injector = injector
    self.recoveries: list[failures.Recovery] = []
    self._done: list[tuple[int, instruction_lib.Instruction]] = []
    self._times = dict.fromkeys(PHASES, 0.0)
    self._start = self._last = time.perf_counter()

  def until_vote(self, make_scale) -> tuple[float, float | None, int]:  # noqa: ANN001
    """Runs all phases up to the vote, again after every death."""
    engine = self._engine
    order = iter(linearize.linearize(self._membership.timelines()))
    while True:
      try:
        self._enter("compute")
        self._compute(order)
        self._enter("ties")
        ties.tie(engine)
        self._enter("reduce")
        reduce.reduce(engine)
        engine.wait()
        self._enter("norm")
        scale, norm = make_scale()
        self._enter("refresh")
        refresh_bytes = refresh.refresh(engine, scale)
        self._enter("vote")
        engine.wait()  # One process: who gets here has all votes.
        return scale, norm, refresh_bytes
      except failures.NodesLostError as lost:
        order = self._fail_over(lost, order)

  def apply(self, scale: float) -> None:
    """Updates the state, and gives lost places to those who are left."""
    try:
      self._enter("apply")
    except failures.NodesLostError as lost:
      self._bury(lost)
    apply.apply(self._engine, scale)
    self._engine.wait()
    if self.recoveries:
      self._membership.repair(self._step)

  def result(self, **values) -> StepResult:  # noqa: ANN003
    """Returns the result of the step, which ends here."""
    self._finish_phase("apply")
    measured = self._recorder.finish()
    for recovery in self.recoveries:
      recovery.measure(measured, end_secs=self._last)
    return StepResult(
        secs=self._last - self._start,
        phase_secs=self._times,
        measured=measured,
        start_secs=self._start,
        recoveries=tuple(self.recoveries),
        **values,
    )

  def _enter(self, phase: str) -> None:
    index = PHASES.index(phase)
    if index:
      self._finish_phase(PHASES[index - 1])
    self._injector.before_phase(phase)

  def _finish_phase(self, phase: str) -> None:
    now = time.perf_counter()
    self._times[phase] += now - self._last
    self._last = now

  def _compute(
      self, order: Iterator[tuple[int, instruction_lib.Instruction]]
  ) -> None:
    for node, instruction in order:
      if node not in self._engine.nodes:
        continue  # Another process runs it.
      self._injector.before_instruction(node)
      result = self._engine.run(node, instruction)
      self._recorder.add(node, instruction, result)
      self._done.append((node, instruction))
    self._recorder.wait()

  def _fail_over(
      self,
      lost: failures.NodesLostError,
      order: Iterator[tuple[int, instruction_lib.Instruction]],
  ) -> Iterator[tuple[int, instruction_lib.Instruction]]:
    """Returns the order in which the rest of the step runs."""
    recovery, pipelines = self._bury(lost)
    start = time.perf_counter()
    rest = linearize.linearize(
        [self._membership.rest(pipeline) for pipeline in pipelines]
    )
    affected = {n for p in pipelines for n in self._engine.owners[p]}
    affected |= lost.nodes
    others = [entry for entry in order if entry[0] not in affected]
    recovery.plan_secs = time.perf_counter() - start
    recovery.redone = failures.count_redone(self._done, rest)
    self._last = time.perf_counter()
    return _interleave(rest, others)

  def _bury(
      self, lost: failures.NodesLostError
  ) -> tuple[failures.Recovery, list[int]]:
    """Removes the dead; returns the record and the pipelines they were in."""
    victims = self._membership.places_of(lost.nodes)
    recovery = failures.Recovery(
        step=self._step,
        victims=tuple(f"{pipeline}/{stage}" for pipeline, stage in victims),
        rung="shadow",
        detect_secs=time.perf_counter() - lost.at_secs,
        killed_at_secs=lost.at_secs,
        stages=frozenset(stage for _, stage in victims),
    )
    self.recoveries.append(recovery)
    for node in lost.nodes:
      self._recorder.forget(node)
      self._engine.kill(node)
    return recovery, self._membership.fail_over(lost.nodes)


def _interleave(*orders: Order) -> Iterator:
  """Returns one order in which each of `orders` keeps its own."""
  missing = object()
  rounds = itertools.zip_longest(*orders, fillvalue=missing)
  return iter(
      [entry for row in rounds for entry in row if entry is not missing]
  )
