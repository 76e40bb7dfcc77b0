import dataclasses

from absl.testing import parameterized

from bamboo_jax.accounting import account as account_lib
from bamboo_jax.runtime.profile import recorder
from bamboo_jax.schedule import instruction as instruction_lib
from bamboo_jax.training import step as step_lib
from bamboo_jax.training.record import charges as charges_lib, step_times
from tests import profiles
from tests.training import deaths_test

NodeTime = account_lib.NodeTime
Op = instruction_lib.Op

_PRICE = profiles.make_price(36.0, 3.6)


def _measured(node, stage, op, start_secs, end_secs):
  return recorder.MeasuredInstruction(
      node, instruction_lib.Instruction(stage, op, 0), start_secs, end_secs
  )


def _result(start_secs, *, secs=10.0, measured=(), **phases):
  return step_lib.Committed(
      steps=1,
      view=1,
      sums=step_lib.StepSums(1.0, 1.0, 1.0, 0.5),
      secs=secs,
      phase_secs=phases,
      instructions=measured,
      start_secs=start_secs,
  )


class ChargesTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.now = 0.0
    self.nodes = charges_lib.Live(frozenset(range(4)), frozenset({4}))
    self.layout = deaths_test.make_layout((0, 1), (2, 3))
    self.totals = account_lib.Account()

  def _charges(self):
    charges = charges_lib.Charges(0.0, clock=lambda: self.now)
    charges.begin(self.nodes)
    return charges

  def _account(self, charges=None):
    """Returns the account of all charges so far."""
    if charges:
      self.totals += charges.take()
    return self.totals.charge(_PRICE)

  def _add(self, charges, result, passes=None, recoveries=(), sums_secs=0.0):
    """Charges a step after which `self.nodes` live."""
    ran = result.instructions
    owed = [m for r in recoveries for m in step_times.find_owed(ran, r, self.layout)]
    nodes = {m.node for m in ran} & self.nodes.nodes
    passes = passes or step_times.measure_passes(ran, nodes=nodes, owed=owed)
    done = dataclasses.replace(result, measured=step_lib.Measured(passes), recoveries=recoveries)
    charges.add_step(done, self.nodes, num_samples=8, sums_secs=sums_secs)
    self.totals += charges.take()

  def test_sums_without_waiting(self):
    """Nodes 0 and 2 sum stage 0, 1 and 3 stage 1; some wait for the slower."""
    layout = self.layout
    said = [
        step_times.sums_of(secs, nodes={node}, layout=layout)
        for node, secs in enumerate([1.0, 0.5, 3.0, 2.5])
    ]
    self.assertEqual([*map(dict, said)][3], {1: 2.5})
    least = step_lib.join(step_lib.Measured(sums_secs=one) for one in said).sums_secs
    self.assertEqual(step_times.mean_sums_secs(least, layout), (1.0 + 0.5) / 2)
    self.assertEqual(step_times.mean_sums_secs({}, layout), 0.0)

  def test_sums_of_one_process(self):
    """Node 0 owns both stages of the first pipeline by now."""
    layout = deaths_test.make_layout((0, 0), (2, 3))
    said = step_times.sums_of(2.0, nodes={0, 2, 3}, layout=layout)
    self.assertEqual(said, {0: 2.0, 1: 2.0})
    mean = step_times.mean_sums_secs(said | {0: 1.0}, layout)
    self.assertAlmostEqual(mean, (2.0 + 1.0 + 2.0) / 3)

  def test_a_wait_for_others_to_join_is_idle(self):
    """Goodput falls: nothing is trained."""
    charges = self._charges()
    self.now = 10.0
    self._add(charges, _result(0.0), NodeTime(useful=16.0, bubble=24.0))
    before = self._account(charges).node_time
    self.assertEqual((before.idle, before.goodput), (10.0, 16.0 / 50.0))
    self.now = 40.0
    waited = dataclasses.replace(_result(10.0, secs=30.0), idle_secs=20.0)
    self._add(charges, waited, NodeTime(useful=16.0, bubble=24.0))
    after = self._account(charges).node_time
    self.assertEqual(after.bubble, 2 * before.bubble)
    self.assertEqual(after.idle, 2 * before.idle + 5 * 20.0)
    self.assertEqual(after.goodput, 32.0 / 200.0)

  def test_healthy_step(self):
    charges = self._charges()
    measured = [
        _measured(node, node % 2, op, start, start + secs)
        for node in range(4)
        for op, start, secs in (
            (Op.FORWARD, 20, 1.0),
            (Op.REDUNDANT_FORWARD, 22, 0.5),
            (Op.BACKWARD, 23, 2.0),
        )
    ]
    self.now = 33.0
    self._add(charges, _result(20.0, measured=measured, compute=6, refresh=1.0), sums_secs=3.0)
    account = self._account(charges)
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
    charges = self._charges()
    charges.charge()
    recovery = deaths_test.make_recovery(view_at_secs=4.0, agreed_at_secs=4.5, ready_at_secs=4.75)
    measured = [
        _measured(0, 0, Op.FORWARD, 0.0, 2.0),
        _measured(0, 1, Op.BACKWARD, 5.0, 8.0),  # For node 1.
        _measured(1, 1, Op.FORWARD, 2.0, 4.0),  # Died with it.
        _measured(2, 0, Op.FORWARD, 0.0, 2.0),
        _measured(3, 1, Op.BACKWARD, 5.0, 8.0),  # Its own.
    ]
    self.nodes = charges_lib.Live(frozenset({0, 4, 2, 3}))
    self.layout = deaths_test.make_layout((0, 4), (2, 3))
    self.now = 12.0
    self._add(charges, _result(0.0, measured=measured), recoveries=(recovery,))
    self.assertEqual(
        self._account(charges).node_time,
        NodeTime(
            useful=2 + 2 + 3,
            recovery=3 + 3 * 0.75 + 4 * 2,  # The last until all could go on.
            bubble=30 - 7 - 3 - 2.25,
            lost=4.0,
            idle=10.0,
        ),
    )

  def test_what_else_is_done(self):
    charges = self._charges()
    self.now = 1.0
    with charges.during("checkpoint"):
      self.now = 3.0
    self.now = 4.0
    self._add(charges, _result(3.5, secs=0.5))
    self.now = 5.0
    with charges.during("useful"):
      self.now = 7.0
    got = self._account(charges).node_time
    self.assertEqual(got.restart, 5 * 1.5)
    self.assertEqual(got.idle, 5 * 1.0 + 0.5)
    self.assertEqual(got.checkpoint, 5 * 2.0)
    self.assertEqual(got.useful, 5 * 2.0)
    self.assertEqual(self._account(charges).node_secs, 35.0)

  def test_nodes_that_come_are_charged_for_their_boot(self):
    charges = self._charges()
    self._add(charges, _result(0.0, secs=1.0))
    self.now = 2.0
    with charges.during("recovery"):
      self.now = 4.0
      more = charges_lib.Live(self.nodes.training, frozenset({4, 5}))
      self.assertEqual(charges.welcome({4: 9.0, 5: 30.0}, more), {5: 30.0})
      with charges.during("redundant"):
        self.now = 5.0
      self.now = 6.0
    self.nodes = more
    self._add(charges, _result(6.0, secs=1.0))
    self.now = 7.0
    got = self._account(charges).node_time
    self.assertEqual(got.recovery, 5 * 2.0 + 6 * 1.0)
    self.assertEqual(got.redundant, 6 * 1.0)
    self.assertEqual(got.idle, 1.0 + 5 * 1.0 + 30.0 + 2.0)
    self.now = 8.0
    self._add(charges, _result(7.0, secs=1.0))
    self.assertEqual(self._account(charges).node_time.idle, got.idle + 2.0)  # Once.

  def test_charges_from_the_start_of_the_agent(self):
    charges = charges_lib.Charges(-4.0, clock=lambda: 1.0)
    charges.begin(charges_lib.Live(self.nodes.training))
    self.assertEqual(self._account(charges).node_time, NodeTime(restart=4 * 5.0))
    self.assertEqual(charges.welcome({0: 0.0, 4: 0.0}, self.nodes), {})
    self._add(charges, _result(1.0, secs=1.0))
    self.assertEqual(self._account(charges).node_time.idle, 5.0 + 1.0)

  def test_a_member_that_joins_a_run_knows_nothing_of_before(self):
    charges = charges_lib.Charges(0.0, clock=lambda: self.now)
    self.now = 5.0
    self.assertEqual(charges.welcome({5: 3.0}, self.nodes), {})
    with charges.during("recovery"):
      self.now = 20.0
    self._add(charges, _result(18.0, secs=2.0))
    self.assertEqual(self._account().secs, 2.0)
    self.now = 21.0
    self._add(charges, _result(20.5, secs=0.5))
    self.assertEqual(self._account().node_secs, 5 * 3.0)

  def test_charges_are_taken_once(self):
    charges = self._charges()
    self.now = 2.0
    charges.charge("lost")
    want = account_lib.Account(2.0, 10.0, NodeTime(lost=10.0))
    self.assertEqual([charges.take(), charges.take()], [want, account_lib.Account()])
