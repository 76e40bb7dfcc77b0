"""Splits a model's layers into pipeline stages.

A pipeline runs at the pace of its slowest stage, so we minimise the time of the
slowest stage. Every node must fit in device memory: with its stage and replica,
and with the stages that it has after any single death. Among equally good
splits we take one that sends few bytes and whose other stages are even. The
search is exact, see `search`, and counts in whole nanoseconds and bytes, so
that ties are broken equally on all machines.
"""

from collections.abc import Iterable, Sequence
import dataclasses
import functools
import itertools
from typing import Any

from bamboo_jax import base
from bamboo_jax.plan import cost_model, search as search_lib
from bamboo_jax.plan.memory import deaths, explain, model as model_lib, upkeep as upkeep_lib
from bamboo_jax.schedule import lines as lines_lib

_NS_PER_MS = 1_000_000
_UPKEEP = upkeep_lib.Upkeep()


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
      raise ValueError(f"Stage 0 must start at layer 0, got bounds={self.bounds}.")
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

  def layers(self, stage: base.StageId) -> range:
    """Returns the indices of the layers that `stage` owns."""
    return range(self.bounds[stage], self.bounds[stage + 1])

  @functools.cached_property
  def sets(self) -> tuple[frozenset[int], ...]:
    """The layers of each stage."""
    return tuple(frozenset(self.layers(s)) for s in base.stages(self.num_stages))

  def stage_of(self, layer: int) -> base.StageId:
    """Returns the stage that owns `layer`, an index."""
    if not 0 <= layer < self.num_layers:
      raise ValueError(f"layer must be below {self.num_layers}, got {layer}.")
    return base.StageId(sum(layer >= bound for bound in self.bounds) - 1)


def refine(partitions: Iterable[Partition]) -> Partition:
  """Returns the coarsest partition whose bounds include those of all others."""
  return Partition(tuple(sorted({b for p in partitions for b in p.bounds})))


def split_layers(
    costs: Sequence[cost_model.LayerCost],
    *,
    num_stages: int,
    memory_limit_bytes: int | None = None,
    in_flight: Sequence[int] | None = None,
    upkeep: upkeep_lib.Upkeep = _UPKEEP,
    ties: Sequence[cost_model.TieCost] = (),
    cuts: Sequence[int] | None = None,
) -> Partition:
  """Returns the contiguous split that minimises the time of the slowest stage.

  The time is that of a forward and a backward pass. Ties are broken by, in this
  order: the bytes sent between stages, the sum of the squares of the stages'
  times, early bounds.

  Args:
    costs: One entry per layer, in model order, each for one microbatch.
    num_stages: From 1 to `len(cuts) + 1`.
    memory_limit_bytes: Memory of one device; None: no limit.
    in_flight: Number of microbatches whose residuals each stage keeps; by
      default `num_stages - s` for stage `s`, as in 1F1B.
    upkeep: Memory of a node besides its stages. With replicas the limit holds
      for a step of the initial roles, and for the one after any single death.
    cuts: Layers at which a stage other than the first may start; by default any
      but layer 0.

  Raises:
    ValueError: `num_stages` is out of range.
    base.InfeasibleError: No split fits in `memory_limit_bytes`.
  """
  if in_flight is None:
    in_flight = lines_lib.in_flight_bounds(num_stages, num_stages)
  if cuts is None:
    cuts = range(1, len(costs))
  _check(num_stages, cuts=cuts, in_flight=in_flight)
  model = model_lib.MemoryModel(costs, in_flight=in_flight, upkeep=upkeep, cuts=cuts, ties=ties)
  # Times are prefix sums, in integers: differences of floats are not exact.
  layers_ns = [round((c.forward_ms + c.backward_ms) * _NS_PER_MS) for c in costs]
  until_ns = [*itertools.accumulate(layers_ns, initial=0)]
  boundary_bytes = (0, *(c.activation_bytes for c in costs))
  search = search_lib.Search(len(costs), num_stages, ends=frozenset({*cuts, len(costs)}))

  find = _Limit(costs, model, search, memory_limit_bytes).find

  def stage_ns(stage: base.StageId, first: int, last: int) -> int | None:
    if memory_limit_bytes is not None:
      if model.total_bytes(stage, first, last) > memory_limit_bytes:
        return None
    return until_ns[last] - until_ns[first]

  slowest_ns, _ = find(stage_ns, max)

  def unevenness(stage: base.StageId, first: int, last: int) -> search_lib.Pair | None:
    ns = stage_ns(stage, first, last)
    if ns is None or ns > slowest_ns:
      return None
    return boundary_bytes[first], ns * ns

  _, bounds = find(unevenness, search_lib.add_pairs)
  return Partition(bounds)


def _check(num_stages: int, *, cuts: Sequence[int], in_flight: Sequence[int]) -> None:
  if not 1 <= num_stages <= len(cuts) + 1:
    raise ValueError(
        f"num_stages must be from 1 to {len(cuts) + 1} (the number of layers, "
        f"or of groups that stay together), got {num_stages}."
    )
  if len(in_flight) != num_stages:
    raise ValueError(
        f"in_flight needs an entry for each of the {num_stages} stages, got " f"{tuple(in_flight)}."
    )


@dataclasses.dataclass(frozen=True)
class _Limit:
  """The limit on splits: every duty fits, also after any single death."""

  costs: Sequence[cost_model.LayerCost]
  model: model_lib.MemoryModel
  search: search_lib.Search
  limit_bytes: int | None

  def find(
      self, charge: search_lib.Charge[Any], combine: search_lib.Combine[Any]
  ) -> tuple[Any, tuple[int, ...]]:
    """Returns the least charge of a split that fits, and its bounds."""
    if self.limit_bytes is None:
      return self.search.best(charge, combine)
    least_bytes, even = self._least
    found = None
    if least_bytes <= self.limit_bytes:
      found = self.search.best(charge, combine)
      if not all(c.holds(found[1]) for c in self._conditions):
        found = self.search.best_that_holds(charge, combine, self._conditions)
    if found is None:
      raise base.InfeasibleError(
          explain.explain_split(self.costs, even, self.model, self.limit_bytes)
      )
    return found

  @functools.cached_property
  def _least(self) -> tuple[int, tuple[int, ...]]:
    """Returns the least memory of the largest stage, and the split.

    Without replicas.
    """
    return self.search.best(self.model.total_bytes, max)

  @functools.cached_property
  def _conditions(self) -> list[search_lib.Condition]:
    return [
        search_lib.Condition(duty.stages, functools.partial(self._fits, duty))
        for duty in deaths.find_duties(self.search.num_stages, self.model.upkeep)
    ]

  def _fits(self, duty: deaths.Duty, bounds: Sequence[int]) -> bool:
    need = duty.need(self.model, bounds)
    return self.limit_bytes is None or need.total_bytes <= self.limit_bytes
