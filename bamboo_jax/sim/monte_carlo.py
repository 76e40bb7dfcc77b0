"""What can be said of many runs."""

from collections.abc import Sequence
import dataclasses
import math
import statistics

# Student's t for a two-sided 95 % interval, by degrees of freedom from 1.
_STUDENT = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
_NORMAL = 1.960


@dataclasses.dataclass(frozen=True)
class Estimate:
  """Mean over seeds, and half its 95 % confidence interval; 0 for one seed."""

  mean: float
  half_width: float = 0.0

  @property
  def low(self) -> float:
    """Lower end of the interval."""
    return self.mean - self.half_width

  @property
  def high(self) -> float:
    """Upper end of the interval."""
    return self.mean + self.half_width


def estimate(values: Sequence[float]) -> Estimate:
  """Returns the mean of values that are independent of each other."""
  mean = statistics.fmean(values)
  if len(values) == 1:
    return Estimate(mean)
  freedom = len(values) - 1
  factor = _STUDENT[freedom - 1] if freedom <= len(_STUDENT) else _NORMAL
  spread = statistics.stdev(values)
  return Estimate(mean, factor * spread / math.sqrt(len(values)))
