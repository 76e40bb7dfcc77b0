"""A cluster and the simulator take the same decisions on the same events.

Each member of a cluster asks `recovery.assignment.Rules` what to do, and does
that. A simulation of the same events, with the same ladder and the same
planner, must take the same rungs and give the same nodes the same places. What
follows the rung `reroute` is not compared: there a cluster takes pipelines that
have lost a stage out at once, and the simulator at the end of the step.
"""

import dataclasses
import itertools

from absl.testing import absltest
from absl.testing import parameterized
import hypothesis
from hypothesis import strategies as st

from bamboo_jax.accounting import prices
from bamboo_jax.recovery import ladder as ladder_lib
from bamboo_jax.schedule import failover
from bamboo_jax.sim import decisions
from bamboo_jax.sim import durations as durations_lib
from bamboo_jax.sim import loop
from bamboo_jax.sim import speed
from bamboo_jax.sim import step_cost
from bamboo_jax.traces import trace as trace_lib
from tests import layouts

_STAGES, _SHARES = 3, 2
_NODES = _STAGES * _SHARES
_EVERY_MS = 1_003_000  # A step takes 10 s.
_PRICE = prices.Price(
    instance="node",
    on_demand_usd_per_hour=3.0,
    spot_usd_per_hour=1.0,
    source="test",
    date="2026",
)


@dataclasses.dataclass(frozen=True)
class SimulatedPlanner:
  """The planner of a cluster, for a simulation in which nothing takes long."""

  inner: ladder_lib.Planner
  heeds_zones: bool = False

  def partitions(self, num_nodes):
    return ()  # Any number of nodes can start.

  def fresh(self, nodes, zones):
    return self.inner.fresh(nodes, zones)

  def adapt(self, pipelines, nodes, zones):
    return self.inner.adapt(pipelines, nodes, zones)

  def step_secs(self, pipelines):
    return self.inner.step_secs(pipelines)

  def pause_secs(self, rung, before, after):
    return self.inner.pause_secs(rung, before, after)

  def cost(self, pipelines):
    del pipelines
    return step_cost.StepCost(10.0, 1.0)

  def delay(self, decision, before, *, when):
    del decision, before, when
    return speed.Delay()


def run_cluster(events, rules):
  """Returns what a cluster does about events, each in a step of its own.

  For each, the rungs that are taken, and who owns which stage then.
  """
  members = {*range(_NODES)}
  starts = [range(i, i + _STAGES) for i in range(0, _NODES, _STAGES)]
  roles = [failover.Roles.initial(nodes) for nodes in starts]
  if not rules.ladder.shadow:
    roles = [r.without_replicas() for r in roles]
  layout, course = rules.start(roles), []
  for kind, nodes in events:
    rungs = []
    if kind == "remove":
      members -= nodes
      if not layout.nodes <= members:
        change = rules.lose(layout, members, zones={})
        rungs.append(change.rung)
        layout = change.layout
    else:
      members |= nodes
    change = rules.improve(layout, members, zones={})
    rungs.append(change.rung)
    layout = change.layout
    rungs = [rung for rung in rungs if rung != "none"]
    course.append((rungs, [roles.owners for roles in layout.roles]))
    if "checkpoint" in rungs:
      break
  return course


def make_policy(rules):
  zero = {f.name: 0.0 for f in dataclasses.fields(durations_lib.Durations)}
  return loop.Policy(
      "policy",
      decisions.Decider(rules.ladder, SimulatedPlanner(rules.planner)),
      durations_lib.Durations(**zero),
  )


def run_simulator(events, policy):
  """Returns the same as `run_cluster`, from a simulation."""
  lines = [trace_lib.Event(0, "add", f"node{n}") for n in range(_NODES)]
  for i, (kind, nodes) in enumerate(events, 1):
    at_ms = _EVERY_MS * i  # In the middle of a step, whenever it began.
    lines += [trace_lib.Event(at_ms, kind, f"node{n}") for n in sorted(nodes)]
  trace = trace_lib.Trace("trace", tuple(lines), duration_ms=100_000_000)
  moments = loop.simulate(trace, policy, _PRICE, keep_moments=True).moments
  course = []
  for i in range(1, len(events) + 1):
    start = _EVERY_MS * i / 1000
    now = [m for m in moments if start <= m.secs < start + 1000]
    rungs = [m.rung for m in now if m.rung != "none"]
    course.append((rungs, [_numbers(names) for names in now[-1].owners]))
    if "checkpoint" in rungs:
      break
  return course


def _numbers(names):
  return tuple(int(name.removeprefix("node")) for name in names)


def is_same(course, other):
  """Whether courses are the same, but for who is where in the end.

  After going back to a checkpoint a node is as good as another.
  """
  *first, (rungs, owners) = course
  *first_other, (rungs_other, owners_other) = other
  if "checkpoint" not in rungs:
    return course == other
  return (first, rungs, shape(owners)) == (
      first_other,
      rungs_other,
      shape(owners_other),
  )


def shape(owners):
  number = {}
  return [tuple(number.setdefault(n, len(number)) for n in o) for o in owners]


@st.composite
def event_lists(draw):
  """Draws lists of events in which there is always a node."""
  live, num_added, events = list(range(_NODES)), _NODES, []
  for _ in range(draw(st.integers(1, 5))):
    if len(live) > 1 and draw(st.booleans()):
      size = draw(st.integers(1, min(3, len(live) - 1)))
      lost = draw(st.permutations(live))[:size]
      live = [node for node in live if node not in lost]
      events.append(("remove", {*lost}))
    else:
      size = draw(st.integers(1, 3))
      new = range(num_added, num_added + size)
      num_added += size
      live += new
      events.append(("add", {*new}))
  return events


class SameDecisionsTest(parameterized.TestCase):

  @parameterized.parameters("lazy", "none")
  def test_random_events(self, mode):
    rules = layouts.make_rules(_STAGES, _SHARES, mode=mode, reroute=False)
    policy = make_policy(rules)

    @hypothesis.settings(max_examples=60, deadline=None, derandomize=True)
    @hypothesis.given(event_lists())
    def check(events):
      got, want = run_simulator(events, policy), run_cluster(events, rules)
      self.assertTrue(is_same(got, want), msg=(got, want))

    check()

  @parameterized.product(mode=["lazy", "none"], reroute=[True, False])
  def test_all_first_losses(self, mode, reroute):
    rules = layouts.make_rules(_STAGES, _SHARES, mode=mode, reroute=reroute)
    policy = make_policy(rules)
    for size in range(1, 4):
      for lost in itertools.combinations(range(_NODES), size):
        hit = {node // _STAGES for node in lost}
        if reroute and len(hit) == _SHARES:
          continue  # Only whole pipelines reroute in a cluster.
        events = [("remove", {*lost})]
        got, want = run_simulator(events, policy), run_cluster(events, rules)
        self.assertEqual(got[0][0][0], want[0][0][0], msg=lost)


if __name__ == "__main__":
  absltest.main()
