"""Memory of any range of layers, on any stage.

All parts are sums over layers, except for the working memory of programs: the
maximum over units, since programs run one after the other. Only residuals
depend on the stage, so the rest of a range is computed once.
"""

from collections.abc import Iterable, Sequence
import dataclasses
import functools
import itertools
from typing import NamedTuple

from bamboo_jax import base
from bamboo_jax.plan import cost_model
from bamboo_jax.plan.memory import needs, upkeep as upkeep_lib

NodeMemory = needs.NodeMemory

_UPKEEP = upkeep_lib.Upkeep()


class _Charge(NamedTuple):
  """Bytes of an owner, apart from the number of microbatches in flight.

  Attributes:
    compute: Peak of the phase "compute", without residuals.
    later: Peak of the later phases.
    residuals: Residuals of one microbatch.
  """

  compute: int
  later: int
  residuals: int


class MemoryModel:
  """Memory needs of owners and shadows of any range of layers; pure."""

  def __init__(
      self,
      costs: Sequence[cost_model.LayerCost],
      *,
      in_flight: Sequence[int],
      upkeep: upkeep_lib.Upkeep = _UPKEEP,
      cuts: Iterable[int] | None = None,
      ties: Sequence[cost_model.TieCost] = (),
  ) -> None:
    """Makes a model of the memory of layers.

    Args:
      in_flight: Number of microbatches whose residuals each stage keeps.
      cuts: First layer of each unit after the first; by default every layer is
        a unit.
    """
    self.in_flight = tuple(in_flight)
    self.upkeep = upkeep
    self._costs = tuple(costs)
    self._tied = _tied_bytes(costs, ties)
    self._activations = (0, *(c.activation_bytes for c in costs[:-1]), 0)
    starts = {*(range(len(costs)) if cuts is None else cuts)} - {0}
    unit_of = [*itertools.accumulate(i in starts for i in range(len(costs)))]
    self._unit_gradients = _spread(unit_of, [c.gradient_bytes for c in costs])
    self._unit_slots = _spread(unit_of, [c.slot_bytes for c in costs])
    self._charge = functools.cache(self._charge)

  def total_bytes(self, stage: base.StageId, first: int, last: int) -> int:
    """Returns the peak bytes of the owner of `stage`, layers [first, last).

    Equal to `owner(...).total_bytes`, but caches all that does not depend on
    the stage.
    """
    one = self._charge(first, last)
    compute = one.compute + self.in_flight[stage] * one.residuals
    return max(compute, one.later)

  def _charge(self, first: int, last: int) -> _Charge:
    memory = self._owner(first, last)
    compute, *later = memory.phases.values()
    residuals = memory.residual_bytes
    return _Charge(compute - residuals, max(later), residuals)

  def owner(self, stage: base.StageId, first: int, last: int) -> NodeMemory:
    """Returns the memory of the owner of `stage`, layers [first, last)."""
    one = self._owner(first, last)
    residuals = self.in_flight[stage] * one.residual_bytes
    return dataclasses.replace(one, residual_bytes=residuals)

  def _owner(self, first: int, last: int) -> NodeMemory:
    """Returns the memory of an owner with one microbatch in flight."""
    layers = self._costs[first:last]
    gradients = sum(c.gradient_bytes for c in layers)
    slots = sum(c.slot_bytes for c in layers)
    edge_bytes = self._activations[first] + self._activations[last]
    k = self.upkeep.num_accumulators
    return NodeMemory(
        parameter_bytes=sum(c.parameter_bytes for c in layers),
        slot_bytes=slots,
        buffer_bytes=self.upkeep.is_remote * edge_bytes,
        accumulator_bytes=k * gradients,
        copy_bytes=sum(c.copy_bytes for c in layers),
        residual_bytes=sum(c.residual_bytes for c in layers),
        transfer_bytes=2 * edge_bytes,
        working_bytes=max(c.working_bytes for c in layers),
        sum_bytes=(self.upkeep.num_shares > 1) * gradients + k * sum(self._tied[first:last]),
        received_bytes=self._sends_state * (gradients + slots),
        # A share from another device, and with several of them a partial sum,
        # see `runtime.phases.reduce`.
        sum_working_bytes=min(2, self.upkeep.num_shares - 1)
        * max(self._unit_gradients[first:last]),
        link_working_bytes=self._link_working(first, last),
    )

  def rerouted(self, stage: base.StageId, first: int, last: int) -> NodeMemory:
    """Returns the memory that an owner needs for another pipeline's shares."""
    one, count = self.owner(stage, first, last), self.upkeep.num_rerouted
    gradients = sum(c.gradient_bytes for c in self._costs[first:last])
    return NodeMemory(
        buffer_bytes=one.buffer_bytes,
        accumulator_bytes=count * gradients,
        residual_bytes=one.residual_bytes,
        transfer_bytes=one.transfer_bytes,
        sum_bytes=count * sum(self._tied[first:last]),
    )

  def shadow(self, first: int, last: int) -> NodeMemory:
    """Returns the memory of a replica of layers `first` to `last - 1`."""
    protection = self.upkeep.protection
    assert protection is not None, "There are no replicas."
    layers = self._costs[first:last]
    parameters = sum(c.parameter_bytes for c in layers)
    slots = sum(c.slot_bytes for c in layers)
    on_host = protection.slots == "host"
    gradients = sum(c.gradient_bytes for c in layers)
    sent = gradients + self._sends_state * slots
    return NodeMemory(
        replica_bytes=parameters + (0 if on_host else slots),
        buffer_bytes=self.upkeep.is_remote * sent,
        copy_bytes=protection.runs_ahead * sum(c.copy_bytes for c in layers),
        working_bytes=protection.runs_ahead * max(c.working_bytes for c in layers),
        received_bytes=sent,
        fetched_bytes=on_host * (not self._sends_state) * slots,
        link_working_bytes=self._link_working(first, last),
    )

  @property
  def _sends_state(self) -> bool:
    protection = self.upkeep.protection
    return protection is not None and protection.refresh == "state"

  def _link_working(self, first: int, last: int) -> int:
    """Returns twice the most bytes that a refresh sends of a unit."""
    if not self.upkeep.is_remote or self.upkeep.protection is None:
      return 0
    slots = self._sends_state * max(self._unit_slots[first:last])
    return 2 * (max(self._unit_gradients[first:last]) + slots)


def _spread(unit_of: Sequence[int], values: Sequence[int]) -> list[int]:
  """Returns the sum of the values of each layer's unit."""
  totals = [0] * (unit_of[-1] + 1)
  for unit, value in zip(unit_of, values, strict=True):
    totals[unit] += value
  return [totals[unit] for unit in unit_of]


def _tied_bytes(
    costs: Sequence[cost_model.LayerCost], ties: Sequence[cost_model.TieCost]
) -> list[int]:
  """Returns the bytes of tied parameters of each layer."""
  copies: dict[str, dict[str, int]] = {}
  for tie in ties:
    copies.setdefault(tie.owner, {})[tie.owner] = tie.tied_bytes
    copies.setdefault(tie.user, {})[tie.owner] = tie.tied_bytes
  return [sum(copies.get(c.name, {}).values()) for c in costs]
