"""For how many microbatches a stage keeps residuals."""

from bamboo_jax import base
from bamboo_jax.schedule import scheduler

SCHEDULES = ("1f1b", "gpipe")


def in_flight_limits(schedule: str, num_stages: int) -> tuple[int, ...] | None:
  """Returns the bounds that rows must keep, None if there are none."""
  if schedule not in SCHEDULES:
    raise ValueError(base.suggest(schedule, SCHEDULES, what="schedule"))
  if schedule == "gpipe":
    return None
  return scheduler.one_f_one_b_bounds(num_stages)


def in_flight_bounds(
    schedule: str, num_stages: int, num_microbatches: int
) -> tuple[int, ...]:
  """Returns for how many microbatches each stage keeps residuals at once."""
  limits = in_flight_limits(schedule, num_stages)
  limits = limits or (num_microbatches,) * num_stages
  return tuple(min(limit, num_microbatches) for limit in limits)
