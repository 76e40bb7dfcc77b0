"""Splits the global batch into shares, and gives them to pipelines.

The shares of a run never change. Each has its own gradient accumulator, and
they are summed in order, so the bits of the result do not depend on the number
of pipelines or their shares.
"""

from collections.abc import Iterable, Sequence
import dataclasses
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

  Raises:
    ValueError: `num_pipelines` is out of range.
  """
  if not 1 <= num_pipelines <= num_shares:
    raise ValueError(
        f"num_pipelines must be from 1 to num_shares={num_shares}, got "
        f"{num_pipelines}."
    )
  if kept is None:
    bounds = [i * num_shares // num_pipelines for i in range(num_pipelines + 1)]
    if counts is not None:
      bounds = [0, *itertools.accumulate(counts)]
    return tuple(
        tuple(map(base.ShareId, range(first, last)))
        for first, last in itertools.pairwise(bounds)
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
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      if type(value) is not int or value < 1:
        raise ValueError(
            f"{field.name} must be a whole number >= 1, got {value!r}."
        )
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
