"""Splits microbatches so that unequal pipelines finish together.

Microbatches are dealt one by one, each to the pipeline that would finish first
(Oobleck, SOSP'23, section 4, asks for equal times instead). This is optimal if
a pipeline is never faster with one microbatch more. Proof: suppose that all
could be done by a time t. While microbatches remain, some pipeline has fewer
than it could do by t, and would finish one more by t; the chosen pipeline
finishes no later.
"""

import bisect
from collections.abc import Callable, Sequence
import dataclasses
import heapq

from bamboo_jax import base


@dataclasses.dataclass(frozen=True)
class PipelinePace:
  """Speed of a pipeline.

  Attributes:
    finish_ms: Returns the time at which it finishes a number of microbatches;
      must not decrease. May be slow, so it is called rarely.
    least_ms: Lower bound of the time of a microbatch; above 0.
  """

  finish_ms: Callable[[int], float]
  least_ms: float

  def grouped(self, size: int) -> "PipelinePace":
    """Returns the pace of groups of `size` microbatches."""
    finish_ms = self.finish_ms
    return PipelinePace(
        lambda count: finish_ms(size * count), size * self.least_ms
    )

  def most_done(self, limit_ms: float, *, most: int) -> int:
    """Returns the number of microbatches done by `limit_ms`, up to `most`."""
    bound = max(0.0, min(most, limit_ms / self.least_ms))
    return bisect.bisect_right(
        range(1, int(bound) + 1), limit_ms, key=self.finish_ms
    )


def split_by_makespan(
    num_microbatches: int, paces: Sequence[PipelinePace]
) -> tuple[int, ...]:
  """Returns the number of microbatches of each pipeline, at least one.

  Among pipelines that would finish at the same time, the first gets it.

  Raises:
    base.InfeasibleError: A pipeline would get none, or there is no pipeline.
  """
  _check(num_microbatches, len(paces))
  counts = _surely(num_microbatches, paces)
  ends = [(p.finish_ms(counts[i] + 1), i) for i, p in enumerate(paces)]
  heapq.heapify(ends)
  for _ in range(num_microbatches - sum(counts)):
    first = ends[0][1]
    counts[first] += 1
    end_ms = paces[first].finish_ms(counts[first] + 1)
    heapq.heapreplace(ends, (end_ms, first))
  return tuple(counts)


def _surely(num_microbatches: int, paces: Sequence[PipelinePace]) -> list[int]:
  """Returns the numbers done before a lower bound of the makespan."""
  time_ms = num_microbatches / sum(1.0 / p.least_ms for p in paces)
  counts = [max(1, p.most_done(time_ms, most=num_microbatches)) for p in paces]
  fits = sum(counts) <= num_microbatches
  return counts if fits else [1] * len(paces)


def split_evenly(num_microbatches: int, num_pipelines: int) -> tuple[int, ...]:
  """Returns the most even split; the first pipelines get more.

  Raises:
    base.InfeasibleError: A pipeline would get none, or there is no pipeline.
  """
  _check(num_microbatches, num_pipelines)
  each, rest = divmod(num_microbatches, num_pipelines)
  return (each + 1,) * rest + (each,) * (num_pipelines - rest)


def _check(num_microbatches: int, num_pipelines: int) -> None:
  if not 1 <= num_pipelines <= num_microbatches:
    raise base.InfeasibleError(
        f"{num_microbatches} microbatches cannot be given to {num_pipelines} "
        "pipelines, at least one to each."
    )
