"""Charges any range of layers, on any stage, in constant time.

All but the working memory of programs are sums over layers, so prefix sums do,
as the search for a partition needs. Working memory is that of the unit that
needs most, since programs run one after the other.
"""

from collections.abc import Iterable, Sequence
import itertools

from bamboo_jax.plan import cost_model
from bamboo_jax.plan.memory import needs
from bamboo_jax.plan.memory import upkeep as upkeep_lib

NodeMemory = needs.NodeMemory

_UPKEEP = upkeep_lib.Upkeep()


class MemoryModel:
  """Memory of owners and of shadows; pure."""

  def __init__(
      self,
      costs: Sequence[cost_model.LayerCost],
      *,
      in_flight: Sequence[int],
      upkeep: upkeep_lib.Upkeep = _UPKEEP,
      cuts: Iterable[int] | None = None,
      ties: Sequence[cost_model.TieCost] = (),
  ) -> None:
    """Prepares to charge the layers `costs`, in model order.

    Args:
      in_flight: For how many microbatches each stage keeps residuals.
      cuts: First layers of units but the first; by default each is a unit.
      ties: Parameters of which two layers hold a copy.
    """
    self.in_flight = tuple(in_flight)
    self.upkeep = upkeep
    self.num_layers = len(costs)
    self._parameters = prefix_sums(c.parameter_bytes for c in costs)
    self._slots = prefix_sums(c.slot_bytes for c in costs)
    self._copies = prefix_sums(c.copy_bytes for c in costs)
    self._residuals = prefix_sums(c.residual_bytes for c in costs)
    self._tied = prefix_sums(_tied_bytes(costs, ties))
    inner = [c.activation_bytes for c in costs[:-1]]
    self._activations = (0, *inner, 0)
    self._working = _range_maxima([c.working_bytes for c in costs])
    unit_of = _find_units(len(costs), cuts)
    self._unit_parameters = _range_maxima(
        _spread(unit_of, [c.parameter_bytes for c in costs])
    )
    self._unit_slots = _range_maxima(
        _spread(unit_of, [c.slot_bytes for c in costs])
    )
    # For `total_bytes`: what is there while rows run, and once they have run.
    k = upkeep.num_accumulators
    until = [*zip(self._parameters, self._slots, self._tied, strict=True)]
    self._in_rows = tuple(
        (1 + k) * p + s + c
        for (p, s, _), c in zip(until, self._copies, strict=True)
    )
    self._summed = tuple(
        (1 + k + upkeep.is_summed) * p + s + k * t for p, s, t in until
    )
    self._proposed = tuple(self._sends_state * (p + s) for p, s, _ in until)

  def total_bytes(self, stage: int, first: int, last: int) -> int:
    """Returns the total of `owner`, quickly."""
    residuals, edges = self._residuals, self._activations
    in_rows, summed = self._in_rows, self._summed
    edge_bytes = edges[first] + edges[last]
    compute = (
        in_rows[last]
        - in_rows[first]
        + self.in_flight[stage] * (residuals[last] - residuals[first])
        + 2 * edge_bytes
        + self._working[first][last]
    )
    proposed = self._proposed[last] - self._proposed[first]
    after = (
        summed[last]
        - summed[first]
        + max(
            self._sum_working(first, last),
            proposed + self._link_working(first, last),
        )
    )
    return max(compute, after) + self.upkeep.is_remote * edge_bytes

  def owner(self, stage: int, first: int, last: int) -> NodeMemory:
    """Returns what it takes to own `stage`: layers `first` to `last - 1`."""
    parameters = self._parameters[last] - self._parameters[first]
    slots = self._slots[last] - self._slots[first]
    residuals = self._residuals[last] - self._residuals[first]
    tied = self._tied[last] - self._tied[first]
    edge_bytes = self._activations[first] + self._activations[last]
    k = self.upkeep.num_accumulators
    return NodeMemory(
        parameter_bytes=parameters,
        slot_bytes=slots,
        buffer_bytes=self.upkeep.is_remote * edge_bytes,
        accumulator_bytes=k * parameters,
        copy_bytes=self._copies[last] - self._copies[first],
        residual_bytes=self.in_flight[stage] * residuals,
        transfer_bytes=2 * edge_bytes,
        working_bytes=self._working[first][last],
        sum_bytes=self.upkeep.is_summed * parameters + k * tied,
        received_bytes=self._proposed[last] - self._proposed[first],
        sum_working_bytes=self._sum_working(first, last),
        link_working_bytes=self._link_working(first, last),
    )

  def shadow(self, first: int, last: int) -> NodeMemory:
    """Returns what it takes to hold a replica of these layers."""
    protection = self.upkeep.protection
    parameters = self._parameters[last] - self._parameters[first]
    slots = self._slots[last] - self._slots[first]
    on_host = protection.slots == "host"
    sent = parameters + self._sends_state * slots
    return NodeMemory(
        replica_bytes=parameters + (0 if on_host else slots),
        buffer_bytes=self.upkeep.is_remote * sent,
        copy_bytes=protection.runs_ahead
        * (self._copies[last] - self._copies[first]),
        working_bytes=protection.runs_ahead * self._working[first][last],
        received_bytes=sent,
        fetched_bytes=on_host * (not self._sends_state) * slots,
        link_working_bytes=self._link_working(first, last),
    )

  @property
  def _sends_state(self) -> bool:
    protection = self.upkeep.protection
    return protection is not None and protection.refresh == "state"

  def _sum_working(self, first: int, last: int) -> int:
    """Returns half of the gradient of a unit, see `wire.share_sum`."""
    return self.upkeep.is_summed * self._unit_parameters[first][last] // 2

  def _link_working(self, first: int, last: int) -> int:
    """Returns the packed copy of what is sent of a unit, and its output."""
    if not self.upkeep.is_remote or self.upkeep.protection is None:
      return 0
    slots = self._sends_state * self._unit_slots[first][last]
    return 2 * (self._unit_parameters[first][last] + slots)


def prefix_sums(values: Iterable[int]) -> tuple[int, ...]:
  """Returns the sums of no, one, two and so on up to all `values`."""
  return tuple(itertools.accumulate(values, initial=0))


def _range_maxima(values: Sequence[int]) -> list[list[int]]:
  """Returns a table: the largest of `values[first:last]` at [first][last]."""
  maxima = []
  for first in range(len(values)):
    row = [0] * (first + 1)
    row += itertools.accumulate(values[first:], max)
    maxima.append(row)
  return maxima


def _find_units(num_layers: int, cuts: Iterable[int] | None) -> list[int]:
  """Returns the index of the unit of each layer."""
  starts = {*(range(num_layers) if cuts is None else cuts)} - {0}
  return list(itertools.accumulate(i in starts for i in range(num_layers)))


def _spread(unit_of: Sequence[int], values: Sequence[int]) -> list[int]:
  """Returns for each layer the sum of the values of its unit."""
  totals = [0] * (unit_of[-1] + 1)
  for unit, value in zip(unit_of, values, strict=True):
    totals[unit] += value
  return [totals[unit] for unit in unit_of]


def _tied_bytes(
    costs: Sequence[cost_model.LayerCost], ties: Sequence[cost_model.TieCost]
) -> list[int]:
  """Returns the size of the copies of tied parameters that each layer holds."""
  copies = {}
  for tie in ties:
    copies.setdefault(tie.owner, {})[tie.owner] = tie.tied_bytes
    copies.setdefault(tie.user, {})[tie.owner] = tie.tied_bytes
  return [sum(copies.get(c.name, {}).values()) for c in costs]
