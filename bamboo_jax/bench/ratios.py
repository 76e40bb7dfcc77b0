"""Ratios of two things that were measured in turns."""

from collections.abc import Sequence
import dataclasses

import numpy as np

_NUM_DRAWS = 2000


@dataclasses.dataclass(frozen=True)
class Ratio:
  """Median of some ratios; 95 % interval by bootstrap over the pairs."""

  median: float
  low: float
  high: float
  num_pairs: int

  def __str__(self) -> str:
    return f"{self.median:.3f} [{self.low:.3f}, {self.high:.3f}]"


def paired_ratio(values: Sequence[float], to: Sequence[float]) -> Ratio:
  """Returns the ratio of `values` to the values measured beside them.

  Raises `ValueError` if there is no pair, or one is not whole.
  """
  if len(values) != len(to) or not values:
    raise ValueError(
        f"paired_ratio needs pairs, got {len(values)} values and {len(to)}."
    )
  ratios = np.array(values) / np.array(to)
  rng = np.random.default_rng(0)
  draws = rng.choice(ratios, size=(_NUM_DRAWS, len(ratios)))
  low, high = np.percentile(np.median(draws, axis=1), [2.5, 97.5])
  return Ratio(float(np.median(ratios)), float(low), float(high), len(ratios))
