"""Memory that each stage needs on its device, in bytes.

Five things live there during a step: parameters, optimizer slots, gradients,
the residuals of the microbatches that are between their forward and their
backward pass, and what is on its way to or from a neighbour. All but the last
are sums over layers, so prefix sums charge any range of layers in constant
time, as the search for a partition needs.
"""

from collections.abc import Iterable, Sequence
import dataclasses
import itertools

from bamboo_jax import base
from bamboo_jax.plan import cost_model
from bamboo_jax.schedule import scheduler

SCHEDULES = ("1f1b", "gpipe")


def in_flight_bounds(
    *, schedule: str, num_stages: int, num_microbatches: int
) -> tuple[int, ...]:
  """Returns for how many microbatches each stage keeps residuals at once.

  Raises:
    ValueError: `schedule` is neither "1f1b" nor "gpipe".
  """
  if schedule not in SCHEDULES:
    raise ValueError(base.suggest(schedule, SCHEDULES, what="schedule"))
  if schedule == "gpipe":
    return (num_microbatches,) * num_stages
  return tuple(
      min(bound, num_microbatches)
      for bound in scheduler.one_f_one_b_bounds(num_stages)
  )


def in_flight_limits(
    schedule: str, num_stages: int, num_microbatches: int
) -> tuple[int, ...] | None:
  """Returns the bounds that rows must keep, None if there are none."""
  bounds = in_flight_bounds(
      schedule=schedule,
      num_stages=num_stages,
      num_microbatches=num_microbatches,
  )
  return None if schedule == "gpipe" else bounds


def count_gradients(*, num_shares: int, num_pipelines: int) -> int:
  """Returns the number of copies of its gradients that a stage holds.

  There is one accumulator per share of the pipeline and, if shares must be
  summed, the sum: it is kept beside them until the step is done.
  """
  return num_shares // num_pipelines + (num_shares > 1)


@dataclasses.dataclass(frozen=True)
class StageMemory:
  """Largest number of bytes that a stage needs for each purpose.

  Attributes:
    gradient_bytes: Accumulators of the shares, and their sum.
    residual_bytes: Residuals of all microbatches in flight.
    transfer_bytes: On its way to or from a neighbour: on either side one
      activation and one gradient, more only where rows let them queue.
  """

  parameter_bytes: int
  slot_bytes: int
  gradient_bytes: int
  residual_bytes: int
  transfer_bytes: int

  @property
  def resident_bytes(self) -> int:
    """What is there all the time, whatever microbatches are in flight."""
    return self.parameter_bytes + self.slot_bytes + self.gradient_bytes

  @property
  def total_bytes(self) -> int:
    """Everything together."""
    return self.resident_bytes + self.residual_bytes + self.transfer_bytes


class MemoryModel:
  """Charges any range of layers on any stage."""

  def __init__(
      self,
      costs: Sequence[cost_model.LayerCost],
      *,
      in_flight: Sequence[int],
      num_gradients: int,
  ) -> None:
    """Prepares to charge the layers `costs`, in model order.

    Stage `s` keeps residuals of `in_flight[s]` microbatches, and
    `num_gradients` copies of its gradients.
    """
    self._in_flight = tuple(in_flight)
    self._num_gradients = num_gradients
    self._parameters = prefix_sums(c.parameter_bytes for c in costs)
    self._slots = prefix_sums(c.slot_bytes for c in costs)
    self._residuals = prefix_sums(c.residual_bytes for c in costs)
    self._resident = tuple(
        (1 + num_gradients) * p + s
        for p, s in zip(self._parameters, self._slots, strict=True)
    )
    inner = [2 * c.activation_bytes for c in costs[:-1]]
    self._boundaries = (0, *inner, 0)

  def total_bytes(self, stage: int, first: int, last: int) -> int:
    """Returns the bytes of `stage` if it owns layers `first` to `last - 1`."""
    residuals = self._residuals
    return (
        self._resident[last]
        - self._resident[first]
        + self._in_flight[stage] * (residuals[last] - residuals[first])
        + self._boundaries[first]
        + self._boundaries[last]
    )

  def stage_memory(self, stage: int, first: int, last: int) -> StageMemory:
    """Returns the parts of `total_bytes`."""
    parameter_bytes = self._parameters[last] - self._parameters[first]
    residual_bytes = self._residuals[last] - self._residuals[first]
    return StageMemory(
        parameter_bytes=parameter_bytes,
        slot_bytes=self._slots[last] - self._slots[first],
        gradient_bytes=self._num_gradients * parameter_bytes,
        residual_bytes=self._in_flight[stage] * residual_bytes,
        transfer_bytes=self._boundaries[first] + self._boundaries[last],
    )


def prefix_sums(values: Iterable[int]) -> tuple[int, ...]:
  """Returns the sums of no, one, two and so on up to all `values`."""
  return tuple(itertools.accumulate(values, initial=0))


def format_mib(num_bytes: int) -> str:
  """Returns MiB with one digit, rounded up, so that nothing is 0.0 but 0."""
  return f"{-(-10 * num_bytes // 2**20) / 10:.1f}"
