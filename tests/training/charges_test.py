import dataclasses
import types
from unittest import mock

from absl.testing import parameterized
import hypothesis
from hypothesis import strategies as st

from bamboo_jax.accounting import account as account_lib
from bamboo_jax.training import step as step_lib
from bamboo_jax.training.record import charges as charges_lib, step_times
from tests import layouts, profiles
from tests.training import deaths_test

NodeTime = account_lib.NodeTime

_PRICE = profiles.make_price(36.0, 3.6)


def _result(start_secs, *, secs=10.0, measured=(), **phases):
  return step_lib.StepRecord(
      steps=1,
      view=1,
      sums=step_lib.StepSums(1.0, 1.0, 1.0, 0.5),
      secs=secs,
      phase_secs=phases,
      instructions=measured,
      start_secs=start_secs,
  )


def _lay_out(*rows, spares=()):
  return dataclasses.replace(layouts.lay_out(*rows), spares=spares)


class ChargesTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.now = 0.0
    clock = types.SimpleNamespace(perf_counter=lambda: self.now)
    self.enterContext(mock.patch.object(charges_lib, "time", clock))
    self.layout = _lay_out((0, 1), (2, 3), spares=(4,))
    self.totals = account_lib.Account()

  def begin(self, since_secs=0.0):
    self.charges = charges_lib.Charges(since_secs)
    self.charges.begin(self.layout)

  def account(self):
    """Returns the account of all charges so far."""
    self.totals += self.charges.take()
    return self.totals.charge(_PRICE)

  def add(self, result, passes=None, recoveries=(), sums_secs=0.0):
    """Charges a step at the end of which there is `self.layout`."""
    ran = result.instructions
    owed, _ = step_times.find_owed(ran, recoveries, self.layout)
    nodes = {m.node for m in ran} & {*self.layout.live}
    passes = passes or step_times.sum_passes(step_times.find_passes(ran, owed), nodes)
    measured = step_lib.Measured(passes, sums_secs={0: sums_secs, 1: sums_secs})
    done = dataclasses.replace(result, measured=measured, recoveries=recoveries)
    self.charges.add_step(done, self.layout, num_samples=8)

  def test_mean_of_sums(self):
    """By stage; node 0 owns both stages of a pipeline, and sums as long as the slower takes."""
    layout = layouts.lay_out((0, 0), (2, 3))
    for least, want in (({0: 1.0, 1: 2.0}, (2.0 + 1.0 + 2.0) / 3), ({}, 0.0)):
      self.assertAlmostEqual(step_times.mean_sums_secs(least, layout), want)

  def test_a_wait_for_others_to_join_is_idle(self):
    """Goodput falls: nothing is trained."""
    self.begin()
    self.now = 30.0
    waited = dataclasses.replace(_result(0.0, secs=30.0), idle_secs=20.0)
    self.add(waited, NodeTime(useful=16.0))
    found = self.account().node_time
    self.assertEqual(found, NodeTime(useful=16.0, bubble=24.0, idle=10.0 + 5 * 20.0))
    self.assertEqual(found.goodput, 16.0 / 150.0)

  def test_healthy_step(self):
    self.begin()
    measured = [
        deaths_test.make_pass(node, node % 2, op, start, start + secs)
        for node in range(4)
        for op, start, secs in (("F", 20, 1.0), ("RF", 22, 0.5), ("B", 23, 2.0))
    ]
    self.now = 33.0
    self.add(_result(20.0, measured=measured, compute=6, refresh=1.0), sums_secs=3.0)
    account = self.account()
    self.assertEqual(account.secs, 33.0)
    self.assertEqual(account.num_samples, 8)
    self.assertEqual(
        account.node_time,
        NodeTime(
            useful=4 * 3,
            communication=4 * 3,
            redundant=4 * (0.5 + 1),
            bubble=40 - 24 - 6,
            restart=5 * 20,
            idle=5 * 3 + 10,  # After the step, and the spare node.
        ),
    )
    self.assertAlmostEqual(account.usd, 5 * 33 * 3.6 / 3600)

  def test_death(self):
    self.begin()
    recovery = deaths_test.make_recovery(view_at_secs=4.0, agreed_at_secs=4.5, ready_at_secs=4.75)
    measured = [
        deaths_test.make_pass(0, 0, "F", 0.0, 2.0),
        deaths_test.make_pass(0, 1, "B", 5.0, 8.0),  # For node 1.
        deaths_test.make_pass(1, 1, "F", 2.0, 4.0),  # Died with it.
        deaths_test.make_pass(2, 0, "F", 0.0, 2.0),
        deaths_test.make_pass(3, 1, "B", 5.0, 8.0),  # Its own.
    ]
    self.layout = _lay_out((0, 4), (2, 3))
    self.now = 12.0
    self.add(_result(0.0, measured=measured), recoveries=(recovery,))
    self.assertEqual(
        self.account().node_time,
        NodeTime(
            useful=2 + 2 + 3,
            recovery=3 + 3 * 0.75 + 4 * 2,  # The last until all could go on.
            bubble=30 - 7 - 3 - 2.25,
            lost=4.0,
            idle=10.0,
        ),
    )

  def test_nodes_that_come_are_charged_for_their_boot(self):
    self.begin()
    self.add(_result(0.0, secs=1.0))
    self.now = 2.0
    with self.charges.during("recovery"):
      self.now = 4.0
      more = _lay_out((0, 1), (2, 3), spares=(4, 5))
      self.assertEqual(self.charges.welcome({4: 9.0, 5: 30.0}, more), {5: 30.0})
      with self.charges.during("redundant"):
        self.now = 5.0
      self.now = 6.0
    self.layout = more
    self.add(_result(6.0, secs=1.0))
    self.now = 7.0
    got = self.account().node_time
    self.assertEqual(got.recovery, 5 * 2.0 + 6 * 1.0)
    self.assertEqual(got.redundant, 6 * 1.0)
    self.assertEqual(got.idle, 1.0 + 5 * 1.0 + 30.0 + 2.0)
    self.now = 8.0
    self.add(_result(7.0, secs=1.0))
    self.assertEqual(self.account().node_time.idle, got.idle + 2.0)  # Once.

  def test_charges_from_the_start_of_the_agent(self):
    self.now, spares = 1.0, self.layout
    self.layout = _lay_out((0, 1), (2, 3))
    self.begin(since_secs=-4.0)
    self.assertEqual(self.account().node_time, NodeTime(restart=4 * 5.0))
    self.layout = spares
    self.assertEqual(self.charges.welcome({0: 0.0, 4: 0.0}, self.layout), {})
    self.add(_result(1.0, secs=1.0))
    self.assertEqual(self.account().node_time.idle, 5.0 + 1.0)

  def test_a_member_that_joins_a_run_knows_nothing_of_before(self):
    self.charges = charges_lib.Charges(0.0)
    self.now = 5.0
    self.assertEqual(self.charges.welcome({5: 3.0}, self.layout), {})
    with self.charges.during("recovery"):
      self.now = 20.0
    self.add(_result(18.0, secs=2.0))
    self.assertEqual(self.account().secs, 2.0)
    self.now = 21.0
    self.add(_result(20.5, secs=0.5))
    self.assertEqual(self.account().node_secs, 5 * 3.0)


def _split(passes=NodeTime(), *, lost_secs=0.0, plan_secs=0.0, num_idle=0, **phases):  # noqa: B008
  """Splits a step of 10 s in which four nodes have trained until the end.

  Another one has lived for `lost_secs`, and the rest was planned in `plan_secs`.
  """
  spares = tuple(range(4, 4 + num_idle))
  ready_secs = lost_secs + plan_secs
  recovery = deaths_test.make_recovery(view_at_secs=lost_secs, ready_at_secs=ready_secs)
  step = dataclasses.replace(
      _result(0.0, **phases), measured=step_lib.Measured(passes), recoveries=[recovery]
  )
  before = _lay_out((0, 1), (2, 3), spares=(*spares, 9) if lost_secs else spares)
  return charges_lib.split_step(step, before, _lay_out((0, 1), (2, 3), spares=spares))


_SECS = st.floats(0, 100)
_TIMES = st.fixed_dictionaries({k: _SECS for k in ("useful", "redundant", "recovery", "restart")})
_JOINT = st.fixed_dictionaries({k: _SECS for k in ("norm", "refresh", "plan_secs")})


class SplitStepTest(parameterized.TestCase):

  @parameterized.parameters(
      (
          _split(NodeTime(useful=20, redundant=3), apply=0.5, norm=0.5, num_idle=2),
          NodeTime(useful=24.0, redundant=3.0, bubble=13.0, idle=20.0),
      ),
      (_split(NodeTime(useful=20, restart=5)), NodeTime(useful=20.0, restart=5.0, bubble=15.0)),
      # Parts that overlap: no more than there was.
      (_split(NodeTime(useful=35.0), norm=1.0, plan_secs=2.0), NodeTime(useful=39.0, recovery=1.0)),
  )
  def test_parts(self, got, want):
    self.assertEqual(got, want)

  @hypothesis.given(_TIMES, _JOINT, st.integers(0, 5), _SECS)
  def test_whole(self, passes, joint, num_idle, lost_secs):
    got = _split(NodeTime(**passes), num_idle=num_idle, lost_secs=lost_secs, **joint)
    self.assertAlmostEqual(got.total, 10.0 * (4 + num_idle) + lost_secs)
