"""Checks without a device that a step survives deaths wherever they happen.

For each cut of a step and each choice of victims, their stages go to their
shadows and the rest of the step is planned and checked, which refuses lost or
repeated work, missing inputs, sums out of order and deadlock. If stages have
lost all copies, the error has to name just them. Deaths that leave the
survivors with the same holdings are planned once.
"""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import itertools
import operator
from typing import NamedTuple

from bamboo_jax import base, config as config_lib
from bamboo_jax.plan import rows as rows_lib
from bamboo_jax.schedule import (
    checker,
    costs as costs_lib,
    failover,
    holdings as holdings_lib,
    instruction as instruction_lib,
    lines as lines_lib,
    simulate as simulate_lib,
)
from tests import schedules
from tests.schedule.verify import cuts as cuts_lib


class Tally(NamedTuple):
  """Counts of checked cases.

  Attributes:
    deaths: Pairs of a cut and victims after which the step was finished.
    lost: Such pairs after which stages had no copy, which was noticed.
    plans: Different rests of a step, planned and checked.
    second_deaths: Deaths during such a rest that were survived.
    second_lost: Deaths during such a rest that left stages without a copy.
  """

  cuts: int = 0
  deaths: int = 0
  lost: int = 0
  plans: int = 0
  second_deaths: int = 0
  second_lost: int = 0

  def __add__(self, other: "Tally") -> "Tally":
    return Tally(*map(operator.add, self, other))


@dataclasses.dataclass(frozen=True)
class Step:
  """A step of one pipeline in which nodes are to die.

  `mode` is one of `redundancy.MODES`; `roles` are those at the start.
  """

  roles: failover.Roles
  microbatches: Sequence[int]
  costs: costs_lib.StageCosts
  mode: str
  in_flight: Sequence[int] | None

  @classmethod
  def uniform(cls, *, mode: str, num_microbatches: int, owners: Sequence[int]) -> "Step":
    """Returns a 1F1B step of equal stages, with all replicas the mode has."""
    return cls(
        roles=failover.Roles.initial(owners, has_replicas=mode != "none"),
        microbatches=range(num_microbatches),
        costs=schedules.uniform_costs(len(owners)),
        mode=mode,
        in_flight=lines_lib.in_flight_limits(len(owners)),
    )

  def plan(self) -> Mapping[int, instruction_lib.Row]:
    """Returns its rows if nobody dies; checked."""
    timeline = plan_rows(
        self.mode, self.roles, self.microbatches, costs=self.costs, in_flight=self.in_flight
    ).timeline
    line = lines_lib.Line(self.roles.owners, self.microbatches)
    checker.check(timeline.instructions, [line])
    return timeline.instructions

  def finish(
      self,
      roles: failover.Roles,
      *,
      held: Mapping[int, holdings_lib.Holdings],
      valid: Mapping[int, holdings_lib.Holdings],
  ) -> Mapping[int, instruction_lib.Row]:
    """Returns rows that finish it, checked from what is `held`.

    The plan relies on the `valid` part of that. Raises `checker.ScheduleError`
    if the rows do not finish it.
    """
    lines = [lines_lib.Line(roles.owners, self.microbatches, self.in_flight)]
    rows = simulate_lib.simulate(lines, costs=self.costs, holdings=valid).instructions
    checker.check(rows, lines, held)
    return rows


def plan_rows(mode, roles, microbatches, *, costs, in_flight):
  """Returns the rows of a step; mode "eager" runs redundant passes in any wait."""
  return rows_lib.plan_rows(
      config_lib.RedundancySection(mode, margin=0.0),
      roles,
      microbatches=microbatches,
      costs=costs,
      in_flight=in_flight,
      overrun=99.0,
  )


def verify_deaths(step: Step, *, num_victims: int = 1, second_every: int = 0) -> Iterator[Tally]:
  """Checks deaths in `step`; yields the tally so far after every cut.

  After every `second_every`-th plan (0: never) each survivor dies at every cut of the rest
  of the step. Raises `checker.ScheduleError` if a rest does not finish the
  step, `base.InfeasibleError` if it cannot be planned.
  """
  cuts = cuts_lib.Cuts(step.plan())
  return _verify(step, step.roles, cuts, num_victims=num_victims, second_every=second_every)


def _verify(
    step: Step, roles: failover.Roles, cuts: cuts_lib.Cuts, *, num_victims: int, second_every: int
) -> Iterator[Tally]:
  survived = {
      victims: _is_survived(roles, victims)
      for victims in itertools.combinations(cuts.nodes, num_victims)
  }
  seen = set()
  tally = Tally()
  for cut in cuts:
    tally += Tally(cuts=1)
    for victims, is_survived in survived.items():
      if not is_survived:
        tally += Tally(lost=1)
        continue
      tally += Tally(deaths=1)
      left = tuple(
          None if node in victims else count for node, count in zip(cuts.nodes, cut, strict=True)
      )
      if left in seen:
        continue
      seen.add(left)
      held = cuts.holdings(cut)
      after, valid = failover.fail_over(roles, held, victims)
      held = {node: held[node] for node in after.nodes}
      rest = step.finish(after, held=held, valid=valid)
      tally += Tally(plans=1)
      if second_every and len(seen) % second_every == 0:
        second_cuts = cuts_lib.Cuts(rest, holdings=held)
        *_, second = _verify(step, after, second_cuts, num_victims=1, second_every=0)
        tally += Tally(plans=second.plans, second_deaths=second.deaths, second_lost=second.lost)
    yield tally


def _is_survived(roles: failover.Roles, victims: Sequence[int]) -> bool:
  """Whether every stage keeps a copy; checks that `fail_over` knows."""
  lost = tuple(
      s
      for s, owner in enumerate(roles.owners)
      if {owner, roles.shadows.get(s, owner)} <= set(victims)
  )
  try:
    failover.fail_over(roles, {}, victims)
  except base.UnrecoverableHereError as error:
    assert error.stages == lost, (roles, victims, error.stages)
    return False
  assert not lost, (roles, victims)
  return True
