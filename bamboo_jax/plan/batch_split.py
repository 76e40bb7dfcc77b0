"""Splits the global batch into shares, and gives them to pipelines.

The shares of a run never change. Each has its own gradient accumulator, and
they are summed in order, so the bits of the result do not depend on the number
of pipelines or their shares.

Unequal pipelines finish together: microbatches are dealt one by one, each to
the pipeline that would finish first (Oobleck, SOSP'23, section 4, asks for
equal times instead). This is optimal if a pipeline is never faster with one
microbatch more. Proof: suppose that all could be done by a time t. While
microbatches remain, some pipeline has fewer than it could do by t, and would
finish one more by t; the chosen pipeline finishes no later.
"""

import bisect
from collections.abc import Callable, Iterable, Sequence
import dataclasses
import heapq
import itertools

from bamboo_jax import base


def deal_shares(
    num_shares: int,
    num_pipelines: int,
    kept: Sequence[Sequence[base.ShareId]] | None = None,
    counts: Sequence[int] | None = None,
) -> tuple[tuple[base.ShareId, ...], ...]:
  """Returns the shares of each pipeline.

  Args:
    num_pipelines: From 1 to `num_shares`.
    kept: Shares that the first pipelines keep; the others are dealt one by one
      to the pipeline that lacks most. None: consecutive shares in order.
    counts: Number of shares of each pipeline; by default as even as possible.
  """
  assert 1 <= num_pipelines <= num_shares, (num_shares, num_pipelines)
  if kept is None:
    bounds = [i * num_shares // num_pipelines for i in range(num_pipelines + 1)]
    if counts is not None:
      bounds = [0, *itertools.accumulate(counts)]
    return tuple(
        tuple(map(base.ShareId, range(first, last))) for first, last in itertools.pairwise(bounds)
    )
  dealt = [list(shares) for shares in kept]
  left = set(map(base.ShareId, range(num_shares))).difference(*dealt)
  wanted = counts or [0] * num_pipelines
  for share in sorted(left):
    lacks = [n - len(own) for n, own in zip(wanted, dealt, strict=True)]
    dealt[lacks.index(max(lacks))].append(share)
  return tuple(tuple(sorted(shares)) for shares in dealt)


@dataclasses.dataclass(frozen=True)
class BatchSplit:
  """The global batch as shares of microbatches, given to pipelines.

  Microbatches are numbered over the global batch. Shares are runs of
  microbatches, and pipelines get runs of shares, all of the same length.
  `num_microbatches` is per pipeline, `microbatch_size` is in samples.
  """

  num_pipelines: int
  num_shares: int
  num_microbatches: int
  microbatch_size: int

  def __post_init__(self) -> None:
    if self.num_shares % self.num_pipelines:
      raise ValueError(
          f"num_shares={self.num_shares} must be a multiple of "
          f"num_pipelines={self.num_pipelines}."
      )
    if self.num_microbatches % self.shares_per_pipeline:
      raise ValueError(
          f"num_microbatches={self.num_microbatches} per pipeline must be a "
          "multiple of num_shares / num_pipelines = "
          f"{self.num_shares} / {self.num_pipelines} = "
          f"{self.shares_per_pipeline}."
      )

  @property
  def batch_size(self) -> int:
    """Samples per step."""
    return self.total_microbatches * self.microbatch_size

  @property
  def total_microbatches(self) -> int:
    """Microbatches per step, over all pipelines."""
    return self.num_pipelines * self.num_microbatches

  @property
  def shares_per_pipeline(self) -> int:
    """Number of shares that each pipeline computes."""
    return self.num_shares // self.num_pipelines

  @property
  def microbatches_per_share(self) -> int:
    """Number of microbatches that are summed in one accumulator."""
    return self.total_microbatches // self.num_shares

  def microbatches(self, pipeline: int) -> range:
    """Returns the microbatches that `pipeline` computes."""
    n = self.num_microbatches
    return range(pipeline * n, (pipeline + 1) * n)

  def microbatches_of(self, shares: Iterable[base.ShareId]) -> list[int]:
    """Returns the microbatches of some shares."""
    n = self.microbatches_per_share
    return [m for s in shares for m in range(s * n, (s + 1) * n)]


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
    return PipelinePace(lambda count: finish_ms(size * count), size * self.least_ms)

  def most_done(self, limit_ms: float, *, most: int) -> int:
    """Returns the number of microbatches done by `limit_ms`, up to `most`."""
    bound = max(0.0, min(most, limit_ms / self.least_ms))
    return bisect.bisect_right(range(1, int(bound) + 1), limit_ms, key=self.finish_ms)


def split_by_makespan(num_microbatches: int, paces: Sequence[PipelinePace]) -> tuple[int, ...]:
  """Returns the number of microbatches of each pipeline, at least one.

  Among pipelines that would finish at the same time, the first gets it.

  Raises:
    base.InfeasibleError: A pipeline would get none, or there is no pipeline.
  """
  _check(num_microbatches, len(paces))
  # Done before a lower bound of the makespan.
  bound_ms = num_microbatches / sum(1.0 / p.least_ms for p in paces)
  counts = [max(1, p.most_done(bound_ms, most=num_microbatches)) for p in paces]
  if sum(counts) > num_microbatches:
    counts = [1] * len(paces)
  ends = [(p.finish_ms(counts[i] + 1), i) for i, p in enumerate(paces)]
  heapq.heapify(ends)
  for _ in range(num_microbatches - sum(counts)):
    first = ends[0][1]
    counts[first] += 1
    end_ms = paces[first].finish_ms(counts[first] + 1)
    heapq.heapreplace(ends, (end_ms, first))
  return tuple(counts)


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
