"""Splits a model's layers into pipeline stages.

A pipeline runs at the pace of its slowest stage, so by default we minimise the
time of the slowest stage; the Bamboo paper (section 5) balances memory instead.
In both cases every stage must fit in device memory. Among the splits that are
equally good we take one that sends few bytes and whose other stages are even.
The search is exact and takes O(num_stages * num_layers**2). It counts in whole
nanoseconds and bytes, so a tie is a tie on every machine.
"""

from collections.abc import Callable, Sequence
import dataclasses
import itertools
import operator
from typing import TypeVar

from bamboo_jax import base
from bamboo_jax.plan import cost_model
from bamboo_jax.plan import memory as memory_lib
from bamboo_jax.schedule import scheduler

BALANCES = ("compute", "memory")

_NS_PER_MS = 1_000_000


@dataclasses.dataclass(frozen=True)
class Partition:
  """A contiguous assignment of layers to stages.

  Attributes:
    bounds: First layer of each stage, then the number of layers, so that stage
      `s` owns the layers from `bounds[s]` up to `bounds[s + 1]`.
  """

  bounds: tuple[int, ...]

  def __post_init__(self) -> None:
    if len(self.bounds) < 2 or self.bounds[0] != 0:
      raise ValueError(
          f"Stage 0 must start at layer 0, got bounds={self.bounds}."
      )
    if any(start >= end for start, end in itertools.pairwise(self.bounds)):
      raise ValueError(f"Every stage needs a layer, got bounds={self.bounds}.")

  @property
  def num_stages(self) -> int:
    """Number of stages."""
    return len(self.bounds) - 1

  @property
  def num_layers(self) -> int:
    """Number of layers."""
    return self.bounds[-1]

  def layers(self, stage: int) -> range:
    """Returns the indices of the layers that `stage` owns."""
    return range(self.bounds[stage], self.bounds[stage + 1])

  def stage_of(self, layer: int) -> int:
    """Returns the stage that owns `layer`, an index."""
    if not 0 <= layer < self.num_layers:
      raise ValueError(f"layer must be below {self.num_layers}, got {layer}.")
    return sum(layer >= bound for bound in self.bounds) - 1


def split_layers(
    costs: Sequence[cost_model.LayerCost],
    *,
    num_stages: int,
    memory_limit_bytes: int | None = None,
    balance: str = "compute",
    in_flight: Sequence[int] | None = None,
    num_gradients: int = 1,
    cuts: Sequence[int] | None = None,
) -> Partition:
  """Returns the contiguous split whose worst stage is the best.

  The worst stage is the one with the longest forward and backward pass together
  if `balance` is "compute", and the one that needs most bytes if "memory". Ties
  are broken by, in this order: the slowest stage, the bytes sent between
  stages, the sum of the squares of the stages' times, early bounds.

  Args:
    costs: One entry per layer, in model order, each for one microbatch.
    num_stages: From 1 to `len(costs)`.
    memory_limit_bytes: Of one device; None does not limit it.
    balance: "compute" or "memory".
    in_flight: For how many microbatches each stage keeps residuals; by default
      `num_stages - s` for stage `s`, which is what 1F1B keeps.
    num_gradients: Copies of its gradients that a stage holds.
    cuts: Layers at which a stage other than the first may start, to keep those
      between them together; by default any but layer 0.

  Raises:
    ValueError: `num_stages` is out of range or `balance` is unknown.
    base.InfeasibleError: No split fits in `memory_limit_bytes`.
  """
  if in_flight is None:
    in_flight = scheduler.one_f_one_b_bounds(num_stages)
  if cuts is None:
    cuts = range(1, len(costs))
  _check(num_stages, cuts=cuts, balance=balance, in_flight=in_flight)
  model = memory_lib.MemoryModel(
      costs, in_flight=in_flight, num_gradients=num_gradients
  )
  # Times are prefix sums too, in integers: differences of floats are not exact.
  until_ns = memory_lib.prefix_sums(
      round((c.forward_ms + c.backward_ms) * _NS_PER_MS) for c in costs
  )
  boundary_bytes = (0, *(c.activation_bytes for c in costs))
  search = _Search(len(costs), num_stages, ends=frozenset({*cuts, len(costs)}))

  limit_bytes = memory_limit_bytes
  if balance == "memory" or limit_bytes is not None:
    least_bytes, bounds = search.best(model.total_bytes, max)
    if limit_bytes is not None and least_bytes > limit_bytes:
      raise base.InfeasibleError(
          _explain(costs, bounds, model, limit_bytes=limit_bytes)
      )
    if balance == "memory":
      limit_bytes = least_bytes

  def stage_ns(stage: int, first: int, last: int) -> int | None:
    if (
        limit_bytes is not None
        and model.total_bytes(stage, first, last) > limit_bytes
    ):
      return None
    return until_ns[last] - until_ns[first]

  slowest_ns, _ = search.best(stage_ns, max)

  def unevenness(stage: int, first: int, last: int) -> _Pair | None:
    ns = stage_ns(stage, first, last)
    if ns is None or ns > slowest_ns:
      return None
    return boundary_bytes[first], ns * ns

  _, bounds = search.best(unevenness, _add_pairs)
  return Partition(bounds)


def _check(
    num_stages: int,
    *,
    cuts: Sequence[int],
    balance: str,
    in_flight: Sequence[int],
) -> None:
  if not 1 <= num_stages <= len(cuts) + 1:
    raise ValueError(
        f"num_stages must be from 1 to {len(cuts) + 1} (the number of layers, "
        f"or of groups that stay together), got {num_stages}."
    )
  if balance not in BALANCES:
    raise ValueError(base.suggest(balance, BALANCES, what="balance"))
  if len(in_flight) != num_stages:
    raise ValueError(
        f"in_flight needs an entry for each of the {num_stages} stages, got "
        f"{tuple(in_flight)}."
    )


_Pair = tuple[int, int]
_Value = TypeVar("_Value", int, _Pair)


def _add_pairs(a: _Pair, b: _Pair) -> _Pair:
  return a[0] + b[0], a[1] + b[1]


@dataclasses.dataclass(frozen=True)
class _Search:
  """Dynamic programme over the contiguous splits of layers into stages."""

  num_layers: int
  num_stages: int
  ends: frozenset[int]  # Where a stage may end.

  def best(
      self,
      charge: Callable[[int, int, int], _Value | None],
      combine: Callable[[_Value, _Value], _Value],
  ) -> tuple[_Value, tuple[int, ...]]:
    """Returns the least combined charge and the bounds that have it.

    Args:
      charge: Maps a stage, its first layer and the one after its last to what
        it costs, or to None if it is not allowed.
      combine: Associative; not smaller if an argument grows. If it always grows
        with its arguments, the bounds are the first in lexicographic order.
    """
    # From the last stage to the first: what the stages from `stage` on cost if
    # they start at a layer, and where the next stage starts.
    rest: dict[int, _Value] = {}
    choices = []
    for stage in reversed(range(self.num_stages)):
      rest, choice = self._prepend(stage, rest, charge, combine)
      choices.append(choice)
    assert 0 in rest, "no split is allowed"
    bounds = [0]
    for choice in reversed(choices):
      bounds.append(choice[bounds[-1]])
    return rest[0], tuple(bounds)

  def _prepend(
      self,
      stage: int,
      rest: dict[int, _Value],
      charge: Callable[[int, int, int], _Value | None],
      combine: Callable[[_Value, _Value], _Value],
  ) -> tuple[dict[int, _Value], dict[int, int]]:
    """Returns the costs and choices if `stage` comes before `rest`."""
    costs, choice = {}, {}
    later_stages = self.num_stages - stage - 1
    end = self.num_layers - later_stages  # Leaves a layer to each later stage.
    for first in range(stage, end) if stage else (0,):
      lasts = range(first + 1, end + 1) if later_stages else (end,)
      for last in lasts:
        cost = charge(stage, first, last) if last in self.ends else None
        if cost is None:
          continue
        if later_stages:
          if last not in rest:
            continue
          cost = combine(cost, rest[last])
        if first not in costs or cost < costs[first]:
          costs[first] = cost
          choice[first] = last
    return costs, choice


def _explain(
    costs: Sequence[cost_model.LayerCost],
    bounds: tuple[int, ...],
    model: memory_lib.MemoryModel,
    *,
    limit_bytes: int,
) -> str:
  """Returns by how much the split that needs least memory misses the limit."""
  needs = [
      model.total_bytes(stage, first, last)
      for stage, (first, last) in enumerate(itertools.pairwise(bounds))
  ]
  stage, need = max(enumerate(needs), key=operator.itemgetter(1))
  first, last = costs[bounds[stage]].name, costs[bounds[stage + 1] - 1].name
  mib = memory_lib.format_mib
  return (
      f"No split of {len(costs)} layers into {len(needs)} stages fits in "
      f"{mib(limit_bytes)} MiB per device: at best stage {stage} (layers "
      f"{first} to {last}) needs {mib(need)} MiB, which is "
      f"{mib(need - limit_bytes)} MiB too much. Use more stages, smaller "
      "microbatches or fewer of them in flight."
  )
