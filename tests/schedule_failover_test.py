"""The rest of a step after a failure, for every way in which one can happen."""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import functools
import itertools
import statistics

from absl.testing import absltest
from absl.testing import parameterized
import hypothesis
from hypothesis import strategies as st

from bamboo_jax.schedule import costs as costs_lib
from bamboo_jax.schedule import holdings as holdings_lib
from bamboo_jax.schedule import instruction
from bamboo_jax.schedule import linearize
from bamboo_jax.schedule import scheduler
from bamboo_jax.schedule import timeline as timeline_lib

Op = instruction.Op

_RECEIVE = {
    Op.SEND_ACTIVATION: Op.RECV_ACTIVATION,
    Op.SEND_GRAD: Op.RECV_GRAD,
}


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
  """Returns the situation before a step; node `s` owns stage `s`."""
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
      if other == dataclasses.replace(i, op=_RECEIVE[i.op], peer=node):
        yield (node, i.peer)


class FailoverTest(parameterized.TestCase):

  @parameterized.parameters(
      # The gradients that node 2 has sent to the victim go to its shadow, which
      # has done the forward passes. The victim's last send is lost with it.
      (
          1,
          {0: "0RG0<1", 1: "0SG0>0", 2: "1SG1>1"},
          [
              "0: 1RG0<2 1SA2>2 1B0 0B0 1RG1<2 1B1 0B1 1RG2<2 1B2 0B2",
              "2: 1SG0>0 1RA2<0 2F2 2B2 1SG1>0 1SG2>0",
          ],
      ),
      # Redundant forward passes were not done yet. The shadow does them now.
      (
          1,
          {0: "0SA0>1", 1: "0RA0<0", 2: "0RF0"},
          [
              "0: 1F0 1SA0>2 0F1 1F1 0F2 1RG0<2 1SA1>2 1B0 1F2 1SA2>2 0B0"
              " 1RG1<2 1B1 0B1 1RG2<2 1B2 0B2",
              "2: 1RA0<0 2F0 2B0 1SG0>0 1RA1<0 2F1 2B1 1RA2<0 2F2 2B2 1SG1>0"
              " 1SG2>0",
          ],
      ),
      # The gradient of microbatch 0 is not sent again: node 1 has used it.
      (
          2,
          {0: "0RG0<1", 1: "0SG0>0", 2: "1SG1>1"},
          [
              "0: 0SA2>1 0B0 0RG1<1 0B1 0RG2<1 0B2",
              "1: 0RA2<0 1F2 2B0 2B1 2F2 1B1 0SG1>0 2B2 1B2 0SG2>0",
          ],
      ),
      # The shadow of the first stage is the last node.
      (
          0,
          {0: "0RG0<1", 1: "0SG0>0", 2: "1SG1>1"},
          [
              "1: 1RG1<2 1B1 0SG0>2 0RA2<2 1F2 1SA2>2 0SG1>2 1RG2<2 1B2 0SG2>2",
              "2: 1SG1>1 0F2 0RG0<1 0SA2>1 0B0 1RA2<1 2F2 0RG1<1 0B1 2B2 1SG2>1"
              " 0RG2<1 0B2",
          ],
      ),
  )
  def test_shadow_takes_over(self, victim, last_done, want):
    costs = costs_lib.uniform_costs(3)
    plan = functools.partial(
        finish, costs=costs, microbatches=range(3), in_flight=(3, 2, 1)
    )
    schedule, _ = plan(start(3), eager=True)
    prefixes = {}
    for node, row in schedule.rows.items():
      names = [str(i) for i in row]
      prefixes[node] = row[: names.index(last_done[node]) + 1]
    situation = start(3).after(prefixes).without([victim])
    rest, _ = plan(situation, eager=False)
    self.assertEqual(str(rest).splitlines(), want)

  @parameterized.parameters(
      # Stages, microbatches, one cut in so many, least number of cases.
      (2, 1, 1, 20),
      (2, 4, 1, 100),
      (3, 3, 1, 500),
      (4, 2, 1, 1000),
      (4, 4, 4, 700),
  )
  def test_every_death(self, num_stages, num_microbatches, every, want):
    num_cases = check_cuts(
        num_stages, num_microbatches, num_victims=1, every=every
    )
    self.assertGreaterEqual(num_cases, want)

  @parameterized.parameters((4, 3, 1, 1000), (5, 2, 4, 1000))
  def test_every_two_deaths(self, num_stages, num_microbatches, every, want):
    num_cases = check_cuts(
        num_stages, num_microbatches, num_victims=2, every=every
    )
    self.assertGreaterEqual(num_cases, want)

  def test_every_second_death(self):
    num_cases = check_cuts(4, 2, num_victims=1, every=37, again=True)
    self.assertGreaterEqual(num_cases, 500)

  @parameterized.parameters((True, 18.2), (False, 22.2))
  def test_price_of_a_death(self, eager, want_ms):
    """How much longer a step takes with a death, over all times of death."""
    costs = costs_lib.uniform_costs(4)
    plan = functools.partial(
        finish, costs=costs, microbatches=range(8), in_flight=(4, 3, 2, 1)
    )
    _, timeline = plan(start(4), eager=eager)
    longer_ms = []
    for whole_ms in range(int(timeline.span_ms)):
      died_ms = whole_ms + 0.5
      done = {
          node: tuple(
              slot.instruction
              for slot in timeline.slots
              if slot.node == node and slot.end_ms <= died_ms
          )
          for node in range(4)
      }
      for victim in range(4):
        situation = start(4).after(done).without([victim])
        _, rest = plan(situation, eager=False)
        longer_ms.append(died_ms + rest.span_ms - timeline.span_ms)
    self.assertAlmostEqual(statistics.mean(longer_ms), want_ms, places=1)

  @hypothesis.settings(max_examples=100, deadline=None, derandomize=True)
  @hypothesis.given(st.data())
  def test_any_pipeline(self, data):
    num_stages = data.draw(st.integers(1, 6), "num_stages")
    first = data.draw(st.integers(0, 9), "first microbatch")
    count = data.draw(st.integers(1, 8), "num_microbatches")
    microbatches = range(first, first + count)
    times = st.floats(0.0, 9.0) | st.just(1.0)
    costs, real = (
        costs_lib.StageCosts(
            *(
                tuple(data.draw(st.lists(times, min_size=n, max_size=n)))
                for n in (num_stages, num_stages, num_stages - 1)
            )
        )
        for _ in range(2)
    )
    bounds = st.lists(
        st.integers(1, 8), min_size=num_stages, max_size=num_stages
    )
    in_flight = data.draw(st.none() | bounds, "in_flight")
    eager = data.draw(st.booleans(), "eager")
    plan = functools.partial(
        finish,
        costs=costs,
        microbatches=microbatches,
        in_flight=in_flight,
    )
    begin = start(num_stages)
    schedule, timeline = plan(begin, eager=eager)
    self._check_rows(schedule, timeline, in_flight)
    # It runs to its end too if the durations are not those it was made for.
    timeline_lib.play(
        schedule, owners=begin.owners, microbatches=microbatches, costs=real
    )

    order = linearize.linearize([timeline])
    cut = order[: data.draw(st.integers(0, len(order)), "done")]
    done = {
        node: tuple(i for n, i in cut if n == node) for node in schedule.rows
    }
    victim = data.draw(st.integers(0, num_stages - 1), "victim")
    situation = begin.after(done).without([victim])
    if situation is not None:
      self._check_rows(*plan(situation, eager=eager), None)

  def _check_rows(self, schedule, timeline, in_flight):
    """Checks what the docstrings promise beside what `play` checks."""
    for row in schedule.rows.values():
      for k, i in enumerate(row):
        if i.is_receive:
          user = next(j for j in row[k + 1 :] if not j.is_send)
          is_grad = i.op is Op.RECV_GRAD
          name = f"{i.stage}B" if is_grad else f"{i.stage + 1}F"
          self.assertEqual(str(user), f"{name}{i.microbatch}")
    order = linearize.linearize([timeline])
    for node, row in schedule.rows.items():
      self.assertEqual(tuple(i for n, i in order if n == node), row)
    for stage, bound in enumerate(in_flight or ()):
      held = peak = 0
      for _, i in order:
        if i.stage == stage and i.op in (Op.FORWARD, Op.BACKWARD):
          held += 1 if i.op is Op.FORWARD else -1
          peak = max(peak, held)
      self.assertLessEqual(peak, bound)


def check_cuts(
    num_stages: int,
    num_microbatches: int,
    *,
    num_victims: int,
    every: int,
    again: bool = False,
) -> int:
  """Plans and plays the rest of a step after deaths at many cuts.

  Args:
    num_stages: Number of stages.
    num_microbatches: Number of microbatches.
    num_victims: How many nodes die at once.
    every: Takes one cut in so many.
    again: Whether one more node dies, at every cut of the rest.

  Returns:
    The number of cases with a live shadow for every victim.
  """
  plan = functools.partial(
      finish,
      costs=costs_lib.uniform_costs(num_stages),
      microbatches=range(num_microbatches),
      in_flight=scheduler.one_f_one_b_bounds(num_stages),
  )

  def check(here, schedule, num_victims, every):
    """Yields the situation after each death, and what finishes its step."""
    for cut in itertools.islice(cuts(schedule), 0, None, every):
      there = here.after(cut)
      for victims in itertools.combinations(schedule.rows, num_victims):
        if (situation := there.without(victims)) is not None:
          yield situation, plan(situation, eager=False)[0]

  schedule, _ = plan(start(num_stages), eager=True)
  num_cases = 0
  for situation, rest in check(start(num_stages), schedule, num_victims, every):
    num_cases += sum(1 for _ in check(situation, rest, 1, 1)) if again else 1
  return num_cases


if __name__ == "__main__":
  absltest.main()
