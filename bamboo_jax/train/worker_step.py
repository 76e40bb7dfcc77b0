"""The phases of a step on one of many nodes, up to its commit.

They are those of `step`; what one process knows at once is gathered here from
all members of the view: norms and losses, and the votes. Whatever goes wrong on
the way leaves the state as it was, so the caller may decide anew and run the
rest, as often as it takes.
"""

from collections.abc import Callable, Iterable
import dataclasses
import time
from typing import Any

import numpy as np

from bamboo_jax.cluster import client as client_lib
from bamboo_jax.runtime import engine as engine_lib
from bamboo_jax.runtime.phases import apply
from bamboo_jax.runtime.phases import reduce
from bamboo_jax.runtime.phases import refresh
from bamboo_jax.runtime.phases import ties
from bamboo_jax.runtime.profile import recorder as recorder_lib
from bamboo_jax.runtime.wire import transfer_log
from bamboo_jax.schedule import instruction as instruction_lib
from bamboo_jax.train import step as step_lib

PHASES = step_lib.PHASES
Order = Iterable[tuple[int, instruction_lib.Instruction]]


@dataclasses.dataclass(frozen=True)
class Sums:
  """What all nodes know of the sums of a step.

  Attributes:
    loss: Sum of the losses.
    weight: Number of tokens.
    scale: What gradients are multiplied by.
    grad_norm: Global norm of the gradient before clipping; None if not clipped.
  """

  loss: float
  weight: float
  scale: float
  grad_norm: float | None


class WorkerStep:
  """Runs the phases of one step after the other on the local node.

  Attributes:
    sums: Of the step, once they are known.
    phase_secs: Time of each phase of the step so far.
    measured: When instructions of the step ran here.
    refresh_bytes: Bytes that the last refresh has sent here.
  """

  def __init__(
      self,
      engine: engine_lib.Engine,
      *,
      client: client_lib.Client,
      log: transfer_log.TransferLog,
      recorder: recorder_lib.Recorder,
      clip_norm: float | None,
  ) -> None:
    self._engine = engine
    self._client = client
    self._log = log
    self._recorder = recorder
    self._clip_norm = clip_norm

  def begin(self, step: int, *, reached: Callable[[int | str], None]) -> None:
    """Prepares a step.

    Args:
      step: Index of the step.
      reached: Called before each instruction, with its index among those of
        this node, and before each phase, with its name.
    """
    self._step = step
    self._reached = reached
    self._num_run = 0
    self._last = time.perf_counter()
    self._phase: str | None = None
    self.sums: Sums | None = None
    self.measured: list[recorder_lib.Measured] = []
    self.start_secs = time.perf_counter()
    self.phase_secs = dict.fromkeys(PHASES, 0.0)
    self.refresh_bytes = 0

  def until_vote(self, order: Order, say: Callable[[], Any]) -> dict[int, Any]:
    """Runs a step, or the rest of it, up to its commit.

    Args:
      order: The instructions of all nodes that are still to be run.
      say: Returns what this node says to the others when it votes.

    Returns:
      What each member has said.

    Raises:
      Exception: A transfer has failed, or a node of the view is gone. JAX does
        not say which exceptions it raises when a peer dies.
    """
    engine, client = self._engine, self._client
    self._enter("compute")
    self._compute(order)
    self._enter("ties")
    ties.tie(engine)
    self._enter("reduce")
    reduce.reduce(engine)
    engine.wait()
    self._enter("norm")
    self.sums = self._gather_sums()
    self._enter("refresh")
    self.refresh_bytes = refresh.refresh(engine, self.sums.scale)
    engine.wait()
    self._enter("vote")
    votes = client.gather(f"vote {self._step}", say())
    self._log.settle(client.adopted.number, self._step + 1)
    return votes

  def apply(self) -> None:
    """Updates the state, once the step is committed; local."""
    self._finish_phase()
    self._phase = "apply"
    self._reached("apply")
    apply.apply(self._engine, self.sums.scale)
    self._engine.wait()
    self._finish_phase()

  def result(self, *, end_secs: float) -> step_lib.StepResult:
    """Returns what came out of the step, which is committed.

    Args:
      end_secs: When, on `time.perf_counter`.
    """
    return step_lib.StepResult(
        loss=self.sums.loss / self.sums.weight,
        weight=self.sums.weight,
        grad_norm=self.sums.grad_norm,
        secs=end_secs - self.start_secs,
        phase_secs=self.phase_secs,
        measured=self.measured,
        start_secs=self.start_secs,
        refresh_bytes=self.refresh_bytes,
        recoveries=(),
    )

  def _compute(self, order: Order) -> None:
    for node, instruction in order:
      if node in self._engine.nodes:
        self._reached(self._num_run)
        self._num_run += 1
        self._log.check()
        result = self._engine.run(node, instruction)
        self._recorder.add(node, instruction, result)
        self._client.note_progress()
    self.measured += self._recorder.finish()

  def _gather_sums(self) -> Sums:
    engine, last = self._engine, len(self._engine.specs) - 1
    clips = self._clip_norm is not None
    norms = reduce.stage_norms(engine) if clips else {}
    owns_loss = any(row[last] in engine.nodes for row in engine.owners)
    mine = {
        "norms": {s: n.tolist() for s, n in norms.items()},
        "loss": reduce.loss(engine).tolist() if owns_loss else None,
    }
    said = self._client.gather(f"sums {self._step}", mine)
    values = list(said.values())
    loss, weight = next(v["loss"] for v in values if v["loss"] is not None)
    squares: list[float] = []
    for stage in range(len(engine.specs) if clips else 0):
      key = str(stage)
      squares += next(v["norms"][key] for v in values if key in v["norms"])
    scale, norm = step_lib.find_scale(
        np.array(squares), weight=weight, clip_norm=self._clip_norm
    )
    return Sums(loss, weight, scale, norm)

  def _enter(self, phase: str) -> None:
    self._finish_phase()
    self._phase = phase
    self._reached(phase)
    self._log.check()
    self._client.note_progress()

  def _finish_phase(self) -> None:
    now = time.perf_counter()
    if self._phase is not None:
      self.phase_secs[self._phase] += now - self._last
    self._last, self._phase = now, None
