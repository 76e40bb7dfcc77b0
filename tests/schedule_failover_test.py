"""The rest of a step after a failure, for every way in which one can happen."""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import itertools

from absl.testing import absltest
from absl.testing import parameterized
import hypothesis
from hypothesis import strategies as st

from bamboo_jax import base
from bamboo_jax.schedule import costs as costs_lib
from bamboo_jax.schedule import holdings as holdings_lib
from bamboo_jax.schedule import instruction
from bamboo_jax.schedule import linearize
from bamboo_jax.schedule import scheduler
from bamboo_jax.schedule import timeline as timeline_lib

_OTHER_END = {"SA": "RA", "RA": "SA", "SG": "RG", "RG": "SG"}


@dataclasses.dataclass(frozen=True)
class Situation:
  """A pipeline in the middle of a step."""

  owners: tuple[int, ...]
  holdings: Mapping[int, holdings_lib.Holdings]

  def after(self, prefixes: Mapping[int, instruction.Row]) -> "Situation":
    """Returns the situation once each node has run its prefix of a row."""
    return Situation(
        self.owners,
        {
            node: holdings_lib.after(
                row, start=self.holdings.get(node, holdings_lib.Holdings())
            )
            for node, row in prefixes.items()
        },
    )

  def without(self, victims: Sequence[int]) -> "Situation | None":
    """Returns the situation after deaths, None if a shadow is dead too."""
    num_stages = len(self.owners)
    owners = []
    for stage, owner in enumerate(self.owners):
      shadow = (stage - 1) % num_stages
      if owner in victims:
        if owner != stage or shadow in victims or shadow not in self.holdings:
          return None
        owner = shadow
      owners.append(owner)
    held = {n: h for n, h in self.holdings.items() if n not in victims}
    return Situation(tuple(owners), held)


def start(num_stages: int) -> Situation:
  """Returns the situation in which node `s` owns stage `s` and nothing is done."""
  nodes = range(num_stages)
  return Situation(
      tuple(nodes), {node: holdings_lib.Holdings() for node in nodes}
  )


def finish(
    situation: Situation,
    costs: costs_lib.StageCosts,
    microbatches: Sequence[int],
    *,
    in_flight: Sequence[int] | None,
    eager: bool,
) -> tuple[instruction.Schedule, timeline_lib.Timeline]:
  """Plans the rest of the step, and plays it, which checks it."""
  owners, holdings = situation.owners, situation.holdings
  schedule = scheduler.plan_rows(
      owners=owners,
      microbatches=microbatches,
      costs=costs,
      holdings=holdings,
      in_flight=in_flight,
      shadows=scheduler.all_shadows(owners) if eager else {},
  )
  timeline = timeline_lib.play(
      schedule,
      owners=owners,
      microbatches=microbatches,
      costs=costs,
      holdings=holdings,
  )
  return schedule, timeline


def cuts(
    schedule: instruction.Schedule,
) -> Iterator[Mapping[int, instruction.Row]]:
  """Yields what each node may have run when all of them stop."""
  rows = schedule.rows
  first = tuple(0 for _ in rows)
  seen, todo = {first}, [first]
  while todo:
    cut = dict(zip(rows, todo.pop(), strict=True))
    yield {node: rows[node][:k] for node, k in cut.items()}
    for moving in _moves(rows, cut):
      following = tuple(k + (node in moving) for node, k in cut.items())
      if following not in seen:
        seen.add(following)
        todo.append(following)


def _moves(
    rows: Mapping[int, instruction.Row], cut: Mapping[int, int]
) -> Iterator[tuple[int, ...]]:
  """Yields the nodes that can go on together."""
  for node, k in cut.items():
    if k == len(rows[node]):
      continue
    i = rows[node][k]
    if not i.is_transfer:
      yield (node,)
    elif i.is_send and cut[i.peer] < len(rows[i.peer]):
      other = rows[i.peer][cut[i.peer]]
      if str(other).replace("<", ">") == str(
          dataclasses.replace(
              i, op=instruction.Op(_OTHER_END[i.op.value]), peer=node
          )
      ).replace("<", ">"):
        yield (node, i.peer)


class FailoverTest(parameterized.TestCase):

  def test_shadow_takes_over_the_last_stage(self):
    costs = costs_lib.uniform_costs(3)
    schedule, _ = finish(
        start(3), costs, range(3), in_flight=(3, 2, 1), eager=True
    )
    # Node 2 dies once it has sent the gradient of microbatch 0. Node 1 has used
    # it, and residuals of two redundant forward passes.
    done = {0: "0RG0<1", 1: "0SG0>0", 2: "1SG1>1"}
    prefixes = {}
    for node, row in schedule.rows.items():
      names = [str(i) for i in row]
      prefixes[node] = row[: names.index(done[node]) + 1]
    situation = start(3).after(prefixes).without([2])
    rest, _ = finish(
        situation, costs, range(3), in_flight=(3, 2, 1), eager=False
    )
    self.assertEqual(
        str(rest).splitlines(),
        [
        ],
    )

  @parameterized.parameters(
      (1, 3, 1), (2, 1, 1), (2, 4, 1), (3, 3, 1), (4, 2, 1), (4, 3, 3)
  )
  def test_every_single_death(self, num_stages, num_microbatches, every):
    self._check(num_stages, num_microbatches, victims=1, every=every)

  @parameterized.parameters((4, 2, 2), (5, 2, 12))
  def test_two_deaths_at_once(self, num_stages, num_microbatches, every):
    self._check(num_stages, num_microbatches, victims=2, every=every)

  def _check(self, num_stages, num_microbatches, *, victims, every):
    costs = costs_lib.uniform_costs(num_stages)
    bounds = scheduler.one_f_one_b_bounds(num_stages)
    begin = start(num_stages)
    microbatches = range(num_microbatches)
    schedule, _ = finish(
        begin, costs, microbatches, in_flight=bounds, eager=True
    )
    num_cases = 0
    for cut in itertools.islice(cuts(schedule), 0, None, every):
      here = begin.after(cut)
      for dead in itertools.combinations(range(num_stages), victims):
        if (situation := here.without(dead)) is not None:
          finish(
              situation, costs, microbatches, in_flight=bounds, eager=False
          )
          num_cases += 1
    print(num_cases)


if __name__ == "__main__":
  absltest.main()
