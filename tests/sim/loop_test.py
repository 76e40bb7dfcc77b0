"""Small traces, with results that can be worked out by hand."""

import dataclasses

from absl.testing import absltest, parameterized
import hypothesis
from hypothesis import strategies as st

from bamboo_jax import config as config_lib
from bamboo_jax.sim import build, loop, speed as speed_lib
from bamboo_jax.traces import trace as trace_lib
from tests import policies, profiles

# Steps of 80 samples take 80 s over the number of nodes.
_TABLE = speed_lib.Table("table", 80.0, {n: float(n) for n in range(17) if n})
_DURATIONS = config_lib.DurationsSection(
    boot_secs=0.0,
    detect_secs=1.0,
    repair_secs=3.0,
    reconfigure_secs=20.0,
    restart_secs=60.0,
    load_secs=40.0,
    save_secs=50.0,
    stall_secs=0.0,
    save_every_secs=200.0,
)
_RUNGS = {
    "varuna": ("checkpoint",),
    "bamboo": ("shadow", "reconfigure", "checkpoint"),
    "oobleck": ("reconfigure", "checkpoint"),
    "recycle": ("reroute", "checkpoint"),
    "drop": ("drop", "checkpoint"),
    "full": ("shadow", "reroute", "reconfigure", "checkpoint"),
}


def make_trace(text, *, num_nodes=8, end_secs=2000):
  """Returns a trace in which `num_nodes` come at 0, then "100 remove 3"."""
  lines = [f"0 add {n}" for n in range(num_nodes)] + text.splitlines()
  events = []
  for line in lines:
    secs, kind, node = line.split()
    events.append(trace_lib.Event(int(secs) * 1000, kind, f"node{node}"))
  return trace_lib.Trace("trace", tuple(events), duration_ms=1000 * end_secs)


def make_policy(name, *, num_stages=4, durations=_DURATIONS, **settings):
  config = policies.make_config(
      _RUNGS[name],
      num_stages=num_stages,
      study__durations=durations,
      **dict(study__spread=False, study__reroute="stage", recovery__fold=False) | settings,
  )
  (policy,) = build.make_choices(name, config, _TABLE)
  return policy


def simulate(name, text, *, num_nodes=8, end_secs=2000, **options):
  trace = make_trace(text, num_nodes=num_nodes, end_secs=end_secs)
  return loop.simulate(trace, make_policy(name, **options), profiles.PRICE, keep_moments=True)


class LoopTest(parameterized.TestCase):

  def test_nothing_happens(self):
    outcome = simulate("varuna", "")
    account = outcome.account
    # It takes 100 s to start, then 190 steps of 10 s.
    self.assertEqual(outcome.num_steps, 190)
    self.assertEqual(account.num_samples, 190 * 80)
    self.assertAlmostEqual(account.usd, 8 * 2000 / 3600)
    self.assertAlmostEqual(account.node_time.restart, 800.0)
    self.assertAlmostEqual(account.node_time.useful, 8 * 1900.0)

  def test_uneventful_steps_cost_nothing(self):
    losses = "\n".join(
        f"{1000 * i} {kind} {node}"
        for i in range(1, 51)
        for kind, node in (("remove", i - 1), ("add", i + 7))
    )
    outcome = simulate("oobleck", losses, end_secs=201_000)
    self.assertGreater(outcome.num_steps, 19_000)
    # At each of 50 instants: what happens, the end of the pause, of a step.
    self.assertLess(outcome.num_events, 160)

  def test_restart_from_a_safe_state(self):
    # States are taken at 200 and 400 s; the second is safe at 450 s.
    for at_secs, steps_kept in ((449, 10), (450, 30)):
      outcome = simulate("varuna", f"{at_secs} remove 0", end_secs=at_secs + 1)
      self.assertEqual(outcome.num_steps, steps_kept, msg=at_secs)
      self.assertEqual(outcome.num_rollbacks, 1)
      lost_secs = at_secs - 100 - 10 * steps_kept
      self.assertAlmostEqual(outcome.account.node_time.lost, 8 * lost_secs)

  def test_pauses_and_what_they_are_accounted_as(self):
    # One of 8 nodes is lost at 204 s, in the middle of a step.
    for name, kind, pause_secs in (
        ("varuna", "restart", 101.0),
        ("oobleck", "recovery", 21.0),
        ("bamboo", "recovery", 4.0),  # 1 s, and half of the 6 s that are left.
        ("drop", "recovery", 1.0),
    ):
      end_secs = 204 + int(pause_secs)
      outcome = simulate(name, "204 remove 0", end_secs=end_secs)
      node_time = outcome.account.node_time
      expected = 7 * pause_secs + (800 if kind == "restart" else 0)
      self.assertAlmostEqual(getattr(node_time, kind), expected, msg=name)
      if name == "bamboo":
        self.assertEqual(node_time.lost, 0.0)

  def test_reconfiguration_loses_the_step_in_flight(self):
    outcome = simulate("oobleck", "204 remove 0", end_secs=400)
    self.assertAlmostEqual(outcome.account.node_time.lost, 8 * 4.0)
    # 10 steps of 8 nodes until 200 s, then of 7 from 225 s on.
    self.assertEqual(outcome.num_steps, 10 + int((400 - 225) / (80 / 7)))

  def test_sample_dropping_tells_how_many(self):
    # In the first step one of two pipelines is left out. Then a restart with
    # all seven nodes pays, which ends after the trace.
    outcome = simulate("drop", "105 remove 0", end_secs=201)
    self.assertEqual(outcome.rungs, {"checkpoint": 2, "drop": 1})
    self.assertEqual(outcome.num_steps, 1)
    self.assertEqual(outcome.account.num_samples, 40)
    self.assertEqual(outcome.dropped_share, 0.5)

  def test_on_demand_is_not_preempted(self):
    policy = make_policy("varuna", recovery__is_preemptible=False)
    outcome = loop.simulate(make_trace("204 remove 0"), policy, profiles.PRICE)
    self.assertEqual(outcome.num_steps, 190)
    self.assertAlmostEqual(outcome.account.usd, 3.0 * 8 * 2000 / 3600)

  def test_too_few_nodes_wait(self):
    outcome = simulate("varuna", "500 add 3\n600 remove 3", num_nodes=3)
    self.assertEqual(outcome.num_steps, 0)
    self.assertEqual(outcome.account.value, 0.0)
    self.assertEqual(outcome.account.node_time.restart, 400.0)

  def test_a_loss_during_a_restart_starts_it_again(self):
    outcome = simulate("varuna", "50 remove 0", end_secs=159)
    # 100 s from 50 s on, and a second to notice, make 151 s.
    self.assertAlmostEqual(outcome.account.node_time.useful, 7 * 8.0)

  def test_nodes_boot(self):
    durations = dataclasses.replace(_DURATIONS, boot_secs=45.0)
    outcome = simulate("varuna", "20 remove 0\n30 add 0", end_secs=60, durations=durations)
    node_time = outcome.account.node_time
    self.assertAlmostEqual(node_time.restart, 7 * 15.0)

  def test_notice_saves_the_step(self):
    outcomes = [
        simulate("oobleck", f"{text}254 remove 0", end_secs=400) for text in ("", "201 notice 0\n")
    ]
    self.assertGreater(outcomes[0].account.node_time.lost, 0.0)
    self.assertEqual(outcomes[1].account.node_time.lost, 0.0)

  def test_notice_while_it_boots(self):
    durations = dataclasses.replace(_DURATIONS, boot_secs=45.0)
    # Pipelines are not made again for a node that is about to leave.
    for notice, num_changes in (("", 3), ("240 notice 8\n", 1)):
      text = f"204 remove 0\n206 add 8\n{notice}600 remove 8"
      outcome = simulate("bamboo", text, durations=durations)
      self.assertEqual(outcome.rungs["reconfigure"], num_changes)

  def test_moments(self):
    outcome = simulate("bamboo", "204 remove 0\n206 add 8", end_secs=400)
    taken = [(m.secs, m.rung, m.owners[0]) for m in outcome.moments if m.owners]
    _, *rest = owners = ("node0", "node1", "node2", "node3")
    self.assertEqual(taken[0], (0.0, "checkpoint", owners))
    self.assertIn((204.0, "shadow", ("node3", *rest)), taken)
    self.assertEqual(taken[-1][2], ("node8", *rest))
    self.assertEqual(outcome.moments[2].text, "1 lost; every lost stage has a live shadow")

  def test_a_name_that_comes_again_is_another_node(self):
    # The stage of node 0 is vacant until it comes back, and is lost again.
    outcome = simulate("recycle", "204 remove 0\n206 add 0\n309 remove 0")
    self.assertEqual(outcome.rungs["reroute"], 2)
    self.assertEqual(outcome.rungs["repair"], 1)


_CHANGES = st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 13)), max_size=20)


class PropertyTest(parameterized.TestCase):

  @parameterized.parameters(*_RUNGS)
  def test_node_time_adds_up_and_runs_are_repeatable(self, name):
    policy = make_policy(name)

    @hypothesis.settings(max_examples=25, derandomize=True)
    @hypothesis.given(_CHANGES)
    def check(changes):
      live, lines = {*range(8)}, []
      for secs, node in sorted(changes):
        kind = "remove" if node in live else "add"
        live ^= {node}
        lines.append(f"{secs} {kind} {node}")
      trace = make_trace("\n".join(lines), end_secs=3001)
      outcome = loop.simulate(trace, policy, profiles.PRICE)
      account = outcome.account
      self.assertAlmostEqual(account.secs, 3001.0)
      spans = trace_lib.live_spans(trace)
      live_secs = sum(n * (end - start) / 1000 for start, end, n in spans)
      self.assertAlmostEqual(account.node_secs, live_secs, places=5)
      self.assertAlmostEqual(sum(account.node_time.shares().values()), 1.0)
      self.assertEqual(outcome, loop.simulate(trace, policy, profiles.PRICE))

    check()


def follow(roster, text):
  return roster.follow([trace_lib.Event(0, *entry.split()) for entry in text.split(",")])


class RosterTest(absltest.TestCase):

  def test_places(self):
    roster = loop.NodeRoster()
    news = follow(roster, "add a/1,add b/2,add a/3")
    self.assertEqual(roster.num_live, 3)
    self.assertEqual(roster.seat(news.added), (0, 1, 2))
    self.assertEqual(roster.zones(), {0: "a", 1: "b", 2: "a"})
    lost = follow(roster, "remove b/2").lost
    self.assertEqual(roster.find(lost), {1})
    roster.rearrange([2, 0])
    self.assertEqual(roster.names([0, 1]), ("a/3", "a/1"))
    self.assertEqual(roster.find(lost), frozenset())

  def test_gone_before_it_was_ready(self):
    roster = loop.NodeRoster()
    first = follow(roster, "add x").added
    second = follow(roster, "remove x,add x").added
    self.assertEqual(roster.seat(first), ())
    self.assertEqual(roster.seat(second), (0,))
    self.assertEqual(follow(roster, "add y,remove y").added, [])
