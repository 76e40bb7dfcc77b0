"""The sums of a step over all members, and the decisions that follow.

Decisions are pure functions of the gathered sums, so that all members agree
even if one dies meanwhile: the scale of the gradient, and whether the step may
change the state at all.
"""

from collections.abc import Iterable, Mapping
import dataclasses
import math

import numpy as np

from bamboo_jax import base
from bamboo_jax.config import surroundings


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


def add_up(said: Iterable[LocalSums], *, num_stages: int, clip_norm: float | None) -> StepSums:
  """Returns the sums of a step from the parts `said` by all members.

  `clip_norm` is the largest norm of the mean gradient; None: no clipping.
  """
  said = list(said)
  loss, weight, *sums = next(s.loss for s in said if s.loss is not None)
  squares: list[float] = []
  for stage in range(num_stages):
    squares += next(s.squares[stage] for s in said if stage in s.squares)
  if not weight:
    nothing = (math.nan,) * len(sums)
    return StepSums(loss, weight, scale=0.0, grad_norm=math.nan, metrics=nothing)
  metrics = tuple(found / weight for found in sums)
  norm = math.sqrt(sum(np.asarray(squares, np.float64))) / weight
  if clip_norm is None or not norm > clip_norm:  # Also if it is not a number.
    return StepSums(loss, weight, 1.0 / weight, norm, metrics)
  return StepSums(loss, weight, clip_norm / norm / weight, norm, metrics)


def judge(
    step: base.StepId, sums: StepSums, options: surroundings.OptimizerSection, *, num_skipped: int
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


def check_state(step: base.StepId, found: Iterable[str]) -> None:
  """Raises `base.NonFiniteError` if the state before `step` is not finite.

  `found` has the name of a non-finite array of each member, or "" if it has
  none; `step` counts from 0.
  """
  if name := next(filter(None, found), None):
    raise base.NonFiniteError(
        f"Training stops before step {step + 1}: {name} is not finite, so no "
        "step can succeed and no checkpoint would be saved. Earlier "
        "checkpoints are not affected."
    )
