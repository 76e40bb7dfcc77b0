"""The number of microbatches whose residuals a stage keeps."""

from bamboo_jax import base
from bamboo_jax.schedule import scheduler

SCHEDULES = ("1f1b", "gpipe")


def in_flight_limits(schedule: str, num_stages: int) -> tuple[int, ...] | None:
  """Returns the microbatches in flight that a schedule allows on each stage.

  None: any number. `ValueError` for a schedule other than "1f1b" and "gpipe".
  """
  if schedule not in SCHEDULES:
    raise ValueError(base.suggest(schedule, SCHEDULES, what="schedule"))
  if schedule == "gpipe":
    return None
  return scheduler.one_f_one_b_bounds(num_stages)


def in_flight_bounds(
    schedule: str, num_stages: int, num_microbatches: int
) -> tuple[int, ...]:
  """Returns the most microbatches whose residuals each stage keeps at once."""
  limits = in_flight_limits(schedule, num_stages)
  limits = limits or (num_microbatches,) * num_stages
  return tuple(min(limit, num_microbatches) for limit in limits)
