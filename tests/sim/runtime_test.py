"""A run and a simulation of it take the same decisions on the same events.

Nodes die, come and are given notice by the place that they have, since who is where among
nodes that hold nothing does not matter.
"""

import dataclasses
import itertools

from absl.testing import parameterized
import hypothesis
from hypothesis import strategies as st

from bamboo_jax import config as config_lib
from bamboo_jax.schedule import failover
from bamboo_jax.sim import loop, speed, times as times_lib
from bamboo_jax.traces import trace as trace_lib
from tests import layouts, profiles

_STAGES, _SHARES = 3, 2
_NODES = _STAGES * _SHARES
_EVERY_SECS = 10_007  # Many steps, and an event is never at the end of one.


class Run:
  """What the members of a run decide."""

  def __init__(self, rules):
    starts = [range(i, i + _STAGES) for i in range(0, _NODES, _STAGES)]
    roles = [failover.Roles.initial(nodes) for nodes in starts]
    if not rules.ladder.has_replicas:
      roles = [failover.Roles(r.owners) for r in roles]
    pipelines = layouts.make_pipelines(roles)
    self._rules, self._layout = rules, rules.start(pipelines)

  @property
  def owners(self):
    return [p.roles.owners for p in self._layout.pipelines]

  def follow(self, live, leaving):
    """Returns the rungs that are taken, and does what is decided."""
    options = dict(zones={}, leaving=leaving)
    changes = []
    if not self._layout.nodes <= {*live}:
      changes.append(self._rules.lose(self._layout, live, **options))
      self._layout = changes[-1].layout
    changes.append(self._rules.improve(self._layout, live, **options))
    self._layout = changes[-1].layout
    return [c.rung for c in changes if c.rung != "none"]


class Simulation:
  """The same, from simulations of all that has happened."""

  def __init__(self, rules, mode):
    zero = {f.name: 0.0 for f in dataclasses.fields(config_lib.DurationsSection)}
    durations = config_lib.DurationsSection(**zero)
    profile = layouts.make_profile(_STAGES, layer_secs=10.0)
    times = times_lib.PipelineTimes(
        speed.ProfileSpeed(
            profile,
            num_microbatches=4 * _SHARES,
            microbatch_size=1,
            redundant=config_lib.RedundancySection(mode),
        ),
        durations,
        drops=False,
        profile=profile,
    )
    self._policy = loop.Policy("policy", rules.ladder, rules.planner, times)
    self.begin()

  def begin(self):
    """Forgets all that has happened, and not what has been decided then."""
    self._events = [trace_lib.Event(0, "add", f"{n}") for n in range(_NODES)]
    self._now_ms = 0
    self.owners = [tuple(range(i, i + _STAGES)) for i in range(0, _NODES, _STAGES)]

  def follow(self, kind, nodes):
    self._now_ms += _EVERY_SECS * 1000
    self._events += [trace_lib.Event(self._now_ms, kind, f"{n}") for n in sorted(nodes)]
    trace = trace_lib.Trace(
        "trace", tuple(self._events), duration_ms=self._now_ms + _EVERY_SECS * 1000
    )
    outcome = loop.simulate(trace, self._policy, profiles.PRICE, keep_moments=True)
    moments = [m for m in outcome.moments if m.secs >= self._now_ms / 1000]
    self.owners = [tuple(map(int, names)) for names in moments[-1].owners]
    return [m.rung for m in moments if m.rung != "none"]


def by_place(owners, live, leaving):
  """Returns the live nodes: owners, then those that hold nothing."""
  owners = dict.fromkeys(itertools.chain(*owners))
  training = [n for n in owners if n in live]  # The dead mark vacant places.
  rest = [n for n in live if n not in training]
  return training + sorted(rest, key=lambda n: (n in leaving, n))


def shape(owners):
  number = {}
  return [tuple(number.setdefault(n, len(number)) for n in o) for o in owners]


def check_same(test, rules, simulation, events):
  """Lets a run and a simulation follow the same events."""
  run, num_added = Run(rules), _NODES
  simulation.begin()
  sides = [run, simulation]
  live, leaving = [[*range(_NODES)] for _ in sides], [set(), set()]
  for kind, picks in events:
    nodes = [None, None]
    for i, side in enumerate(sides):
      order = by_place(side.owners, live[i], leaving[i])
      if kind == "add":
        nodes[i] = {*range(num_added, num_added + len(picks))}
        live[i] += sorted(nodes[i])
        continue
      nodes[i] = {order[pick % len(order)] for pick in picks}
      if kind == "remove":
        nodes[i] = {n for n in nodes[i] if n != order[0]}  # Somebody lives.
        live[i] = [n for n in live[i] if n not in nodes[i]]
        leaving[i] -= nodes[i]
      else:
        nodes[i] -= leaving[i]
        leaving[i] |= nodes[i]
    num_added += len(picks) * (kind == "add")
    if not nodes[0]:
      continue
    want = run.follow(live[0], leaving[0])
    got = simulation.follow(kind, nodes[1])
    told = (events, kind, nodes, run.owners, simulation.owners)
    test.assertEqual(got, want, msg=told)
    test.assertEqual(shape(simulation.owners), shape(run.owners), msg=told)


_EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["remove", "remove", "add", "notice"]),
        st.lists(st.integers(0, 11), min_size=1, max_size=3, unique=True),
    ),
    min_size=1,
    max_size=6,
)


def make_rules(mode, **rungs):
  return layouts.make_rules(_STAGES, _SHARES, mode=mode, layer_secs=10.0, **rungs)


class SameDecisionsTest(parameterized.TestCase):

  @parameterized.product(
      mode=["lazy", "none"],
      rungs=[
          {},
          dict(reroute="none"),
          dict(reconfigure=False),
          dict(reroute="none", reconfigure=False, hand_over=False),
      ],
  )
  def test_random_events(self, mode, rungs):
    rules = make_rules(mode, **rungs)
    simulation = Simulation(rules, mode)

    @hypothesis.settings(max_examples=40, deadline=None, derandomize=True)
    @hypothesis.given(_EVENTS)
    @hypothesis.example([("notice", [0, 1, 3]), ("remove", [1])])  # Of those left one is leaving.
    def check(events):
      check_same(self, rules, simulation, events)

    check()

  @parameterized.product(mode=["lazy", "none"], reroute=["shares", "whole_shares", "none"])
  def test_all_first_losses(self, mode, reroute):
    rules = make_rules(mode, reroute=reroute)
    simulation = Simulation(rules, mode)
    for size in range(1, 4):
      for lost in itertools.combinations(range(1, _NODES), size):
        check_same(self, rules, simulation, [("remove", lost)])
