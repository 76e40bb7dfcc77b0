"""One step of training as a transaction.

A step runs through phases. Until the vote nothing of the state has changed, so
a step that fails before it can be run again; after the vote the update is
local and cannot fail halfway for want of a peer.

  compute  rows of forward and backward passes, and the transfers between them
  ties     gradients of parameters shared by layers on different stages
  reduce   gradients summed over shares, in order, beside the accumulators
  norm     global norm of the gradient, for clipping
  refresh  replicas get what keeps them equal to their owners
  vote     all have finished the phases before: the step is committed
  apply    the update of every stage
"""

from collections.abc import Sequence
import dataclasses
import math
import time

from bamboo_jax.runtime import engine as engine_lib
from bamboo_jax.runtime import node as node_lib
from bamboo_jax.runtime import recorder as recorder_lib
from bamboo_jax.schedule import instruction as instruction_lib

PHASES = ("compute", "ties", "reduce", "norm", "refresh", "vote", "apply")


@dataclasses.dataclass(frozen=True)
class StepResult:
  """What a committed step tells.

  Attributes:
    loss: Mean loss per token of the batch, in nats.
    weight: Number of tokens that the loss is a mean of.
    grad_norm: Global norm of the gradient before clipping; None if not clipped.
    secs: Time of the step.
    phase_secs: Time of each phase that `Transaction` ran. Work is dispatched
      ahead, so a phase ends when the next had to wait for it.
    measured: When the instructions ran.
    start_secs: Time on `time.perf_counter` at which the step started.
  """

  loss: float
  weight: float
  grad_norm: float | None
  secs: float
  phase_secs: dict[str, float]
  measured: Sequence[recorder_lib.Measured]
  start_secs: float


class Transaction:
  """Runs steps on an engine.

  Args:
    engine: The nodes.
    order: All instructions of a step in the order in which they are dispatched.
    num_microbatches: Number of microbatches of a step in all pipelines.
    clip_norm: Largest global norm of the gradient, or None.
  """

  def __init__(
      self,
      engine: engine_lib.Engine,
      *,
      order: Sequence[tuple[int, instruction_lib.Instruction]],
      num_microbatches: int,
      clip_norm: float | None,
  ) -> None:
    if clip_norm is not None and not clip_norm > 0:
      raise ValueError(f"clip_norm must be positive or None, got {clip_norm}.")
    self._engine = engine
    self._order = tuple(order)
    self._num_microbatches = num_microbatches
    self._clip_norm = clip_norm
    self._recorder = recorder_lib.Recorder(sorted(engine.nodes))

  def run(self, step: int, feed: node_lib.FeedFn) -> StepResult:
    """Returns the result of `step` once it is committed.

    Args:
      step: Index of the step, from 0.
      feed: Returns the data of a microbatch of this step.
    """
    engine, start = self._engine, time.perf_counter()
    times = {}

    def end(phase: str) -> None:
      times[phase] = time.perf_counter() - start - sum(times.values())

    engine.begin_step(step, feed, num_microbatches=self._num_microbatches)
    engine.compute(self._order, self._recorder)
    measured = self._recorder.finish()
    end("compute")
    engine.tie()
    end("ties")
    engine.reduce()
    engine.wait()
    end("reduce")
    total, weight = engine.loss()
    scale, norm = self._scale(weight)
    end("norm")
    end("refresh")  # There are no replicas yet.
    engine.wait()  # One process: who gets here has the votes of all nodes.
    end("vote")
    engine.apply(scale)
    engine.wait()
    end("apply")
    return StepResult(
        loss=total / weight,
        weight=weight,
        grad_norm=norm,
        secs=time.perf_counter() - start,
        phase_secs=times,
        measured=measured,
        start_secs=start,
    )

  def close(self) -> None:
    """Ends the threads that measure."""
    self._recorder.close()

  def _scale(self, weight: float) -> tuple[float, float | None]:
    """Returns what gradients are multiplied by, and their norm before."""
    if self._clip_norm is None:
      return 1.0 / weight, None
    norm = math.sqrt(sum(self._engine.norms())) / weight
    if not norm > self._clip_norm:  # Also if it is not a number.
      return 1.0 / weight, norm
    return self._clip_norm / norm / weight, norm
