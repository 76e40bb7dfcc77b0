"""Splits a model's layers into pipeline stages.

A pipeline runs at the pace of its slowest stage, so we minimise the time of the
slowest stage, by dynamic programming in O(num_stages * num_layers**2), under the
constraint that a node fits in device memory with its stage and a replica of
equal size. Among equally good splits we take one that sends few bytes and whose
other stages are even. The split is then checked: every node must fit with its
own replica, and with what it has after any single death. If one does not, we
try again with a limit that is lower in proportion, then with the least one for
which there is a split. We count in whole nanoseconds and bytes,
so that ties are broken equally on all machines.
"""

import bisect
from collections.abc import Callable, Sequence
import dataclasses
import functools
import itertools
from typing import Any, TypeVar

from bamboo_jax import base
from bamboo_jax.plan import cost_model, memory as memory_lib
from bamboo_jax.schedule import lines as lines_lib

_NS_PER_MS = 1_000_000

_Value = TypeVar("_Value", int, tuple[int, int])
_Choice = tuple[Any, tuple[int, ...]]


@dataclasses.dataclass(frozen=True)
class Partition:
  """A contiguous assignment of layers to stages.

  Attributes:
    bounds: First layer of each stage, then the number of layers, so that stage
      `s` owns the layers from `bounds[s]` up to `bounds[s + 1]`.
  """

  bounds: tuple[int, ...]

  def __post_init__(self) -> None:
    if self.num_stages < 1 or any(a >= b for a, b in itertools.pairwise((-1, *self.bounds))):
      raise ValueError(f"Every stage needs a layer, got bounds={self.bounds}.")
    assert self.bounds[0] == 0, self.bounds

  @property
  def num_stages(self) -> int:
    """Number of stages."""
    return len(self.bounds) - 1

  @property
  def num_layers(self) -> int:
    """Number of layers."""
    return self.bounds[-1]

  def layers(self, stage: base.StageId) -> range:
    """Returns the indices of the layers that `stage` owns."""
    return range(self.bounds[stage], self.bounds[stage + 1])

  @functools.cached_property
  def sets(self) -> tuple[frozenset[int], ...]:
    """The layers of each stage."""
    return tuple(frozenset(self.layers(s)) for s in base.stages(self.num_stages))

  def stage_of(self, layer: int) -> base.StageId:
    """Returns the stage that owns `layer`, an index."""
    assert 0 <= layer < self.num_layers, layer
    return base.StageId(bisect.bisect(self.bounds, layer) - 1)


def split_layers(
    layers: Sequence[cost_model.LayerCost],
    num_stages: int,
    memory_limit_bytes: int | None = None,
    **options: Any,
) -> Partition:
  """Returns the split that `find_split` finds.

  Args:
    layers: Their costs, in model order, for one microbatch.
    **options: See `memory.MemoryModel`; `in_flight` is by default that of 1F1B.
  """
  in_flight = lines_lib.in_flight_bounds(num_stages, num_stages)
  model = memory_lib.MemoryModel(layers, **{"in_flight": in_flight, **options})
  return find_split(model, memory_limit_bytes)


def find_split(model: memory_lib.MemoryModel, memory_limit_bytes: int | None) -> Partition:
  """Returns a contiguous split with the least time of the slowest stage.

  The time is that of a forward and a backward pass. Ties are broken by, in this
  order: the bytes sent between stages, the sum of the squares of the stages'
  times, early bounds.

  Args:
    model: Names the layers, the stages and what they need in memory.
    memory_limit_bytes: Memory of one device; None: no limit. With replicas it holds
      for a step of the initial roles, and for the one after any single death.

  Raises:
    ValueError: There are more stages than layers, or groups of them.
    base.InfeasibleError: No split was found that fits in `memory_limit_bytes`.
  """
  num_stages, limit_bytes = model.num_stages, memory_limit_bytes
  if not 1 <= num_stages <= len(model.ends):
    raise ValueError(
        f"config.pipeline.num_stages must be from 1 to {len(model.ends)} (the number of layers, "
        f"or of groups that stay together), got {num_stages}."
    )
  most = lambda split: max(need.total_bytes for _, need in model.find_needs(split.bounds))
  split = _find_fastest(model, limit_bytes)
  if limit_bytes is None:
    assert split is not None
    return split
  if split is not None and (need_bytes := most(split)) > limit_bytes:
    split = _find_fastest(model, limit_bytes * limit_bytes // need_bytes)
  if split is None or most(split) > limit_bytes:
    split = _find_fastest(model, least_bytes(model))
    assert split is not None
    if most(split) > limit_bytes:
      raise base.InfeasibleError(model.explain(split.bounds, limit_bytes))
  return split


def least_bytes(model: memory_lib.MemoryModel) -> int:
  """Returns the memory of the largest stage when memory is balanced."""
  best = _find_best(model, model.total_bytes, max)
  assert best is not None  # Without a limit any stage is allowed.
  return best[0]


def _find_fastest(model: memory_lib.MemoryModel, limit_bytes: int | None) -> Partition | None:
  """Returns the fastest split whose stages fit in a limit; None without any."""
  # Times are prefix sums, in integers: differences of floats are not exact.
  layers_ns = [round((c.forward_ms + c.backward_ms) * _NS_PER_MS) for c in model.layers]
  until_ns = [*itertools.accumulate(layers_ns, initial=0)]
  boundary_bytes = (0, *(c.activation_bytes for c in model.layers))

  def stage_ns(stage: base.StageId, first: int, last: int) -> int | None:
    if limit_bytes is not None and model.total_bytes(stage, first, last) > limit_bytes:
      return None
    return until_ns[last] - until_ns[first]

  def unevenness(stage: base.StageId, first: int, last: int) -> tuple[int, int] | None:
    ns = stage_ns(stage, first, last)
    return None if ns is None or ns > slowest_ns else (boundary_bytes[first], ns * ns)

  if (fastest := _find_best(model, stage_ns, max)) is None:
    return None
  slowest_ns = fastest[0]
  found = _find_best(model, unevenness, lambda a, b: (a[0] + b[0], a[1] + b[1]))
  assert found is not None
  return Partition(found[1])


def _find_best(
    model: memory_lib.MemoryModel,
    charge: Callable[[base.StageId, int, int], _Value | None],
    combine: Callable[[_Value, _Value], _Value],
) -> tuple[_Value, tuple[int, ...]] | None:
  """Returns the least combined charge of all splits, and the first bounds with it.

  Args:
    charge: Returns the cost of a stage, given its first layer and the one after
      its last; None if it is not allowed.
    combine: Combines costs; associative and monotone.
  """
  num_layers, num_stages, ends = len(model.layers), model.num_stages, model.ends
  # By first layer: the cost of the stages from this one on, and their bounds.
  rest: dict[int, _Choice] = {num_layers: (None, (num_layers,))}
  for stage in reversed(base.stages(num_stages)):
    found: dict[int, _Choice] = {}
    firsts: Sequence[int] = range(stage, num_layers) if stage else (0,)
    for first, last in itertools.product(firsts, rest):
      cost = charge(stage, first, last) if first < last and last in ends else None
      if cost is None:
        continue
      if stage + 1 < num_stages:
        cost = combine(cost, rest[last][0])
      choice = cost, (first,) + rest[last][1]
      if first not in found or choice < found[first]:
        found[first] = choice
    rest = found
  return rest.get(0)
