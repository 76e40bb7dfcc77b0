"""What one member records of deaths, and how it explains a pause."""

import types
from unittest import mock

from absl.testing import parameterized

from bamboo_jax.base import logs, types as base_types
from bamboo_jax.recovery import agreement as agreement_lib, assignment, durations
from bamboo_jax.runtime.profile import recorder
from bamboo_jax.schedule import instruction
from bamboo_jax.training import step as step_lib
from bamboo_jax.training.record import deaths as deaths_lib
from tests import layouts, members


def make_change(*rows, **changes):
  given = dict(rung="checkpoint", reason="0/1 have no copy", rolls_back=True)
  return assignment.Decision(layout=layouts.lay_out(*rows), **given | changes)


def make_agreement(**changes):
  given = dict(
      steps=21,
      known_version=0,
      version=1,
      rollbacks=0,
      layout=layouts.lay_out((0, 0), (2, 3)),
      holdings={},
      lost=frozenset({1}),
      victims=(base_types.Place(0, 1),),
      change=make_change((0, 0), (2, 3), rung="shadow", rolls_back=False),
      restored=0,
      is_fresh=False,
  )
  return agreement_lib.Agreement(**given | changes)


def make_pass(node, stage, op, start_secs, end_secs):
  """Returns a measured pass; the values of `op` are F, B, RF and so on."""
  peer = node + 1 if op in ("SA", "RA", "SG", "RG") else None
  ran = instruction.Instruction(stage, instruction.Op(op), 0, peer)
  return recorder.MeasuredInstruction(node, ran, start_secs, end_secs)


def make_recovery(**changes):
  given = dict(
      step=1,
      view=2,
      nodes=(1,),
      names=("n1",),
      victims=("0/1",),
      rung="shadow",
      reason="",
      view_at_secs=10.0,
      agreed_at_secs=10.25,
  )
  return durations.RecoveryTimes(**given | changes)


class DeathsTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    names = {n: f"n{n}" for n in (0, 2, 3, 4)}
    self.enterContext(mock.patch.dict(logs._names, names, clear=True))
    self.cohort = types.SimpleNamespace(
        view=members.view(2, 0, 2, 3, reason="n4 joined", silence_secs=0.25),
        arrived_secs={2: 10.0}.get,
    )
    layout = layouts.lay_out((0, 1), (2, 3))
    engine = types.SimpleNamespace(exchange=True)
    self.state = types.SimpleNamespace(cohort=self.cohort, layout=layout, engine=engine)
    self.deaths = deaths_lib.Deaths(self.state)

  def lose(self, agreement):
    logs.note_names({1: "n1"})
    self.deaths.add(agreement, 10.5)
    return self.deaths.recoveries[-1]

  def test_a_loss(self):
    recovery = self.lose(make_agreement())
    self.assertEqual(recovery.step, 22)  # Of the line that its step gets.
    self.assertEqual((recovery.nodes, recovery.names), ((1,), ("n1",)))
    self.assertEqual(recovery.heirs, ("n0",))
    self.assertEqual(recovery.silence_to_view_secs, 0.25)
    self.assertEqual(recovery.view_at_secs, 10.0)
    self.assertEqual(recovery.agreed_at_secs, 10.5)
    for name in ("died_at_secs", "ready_at_secs", "step_end_at_secs"):
      self.assertIsNone(getattr(recovery, name))
    self.deaths.note_ready()
    ready_secs = recovery.ready_at_secs
    self.assertIsNotNone(ready_secs)
    self.deaths.note_ready()
    self.assertEqual(recovery.ready_at_secs, ready_secs)

  def test_a_node_that_has_not_come_has_not_died(self):
    self.deaths.absent = frozenset({1})
    self.deaths.add(make_agreement(), 10.5)
    self.deaths.add(make_agreement(lost=frozenset({-2})), 10.5)  # Its number is another's now.
    self.cohort.view = members.view(2, 0, 1, 2)  # A late node, which has nothing yet.
    self.deaths.add(make_agreement(), 10.5)
    self.assertEmpty(self.deaths.recoveries)
    self.deaths.add(make_agreement(), 10.5)  # It has died since.
    self.assertLen(self.deaths.recoveries, 1)

  def test_an_answer_that_was_not_carried_out(self):
    """A node dies once, though it is lost in each view until there is another layout."""
    one, two = base_types.Place(0, 1), base_types.Place(1, 1)
    waits = make_change((0, 0), (2, 3), rung="wait", reason="1 more")
    self.lose(make_agreement(change=waits, version=0))
    for number, lost, victims in (
        (3, {1}, (one,)),
        (4, {1, 3}, (one, two)),
        (5, {1, 3}, (one, two)),
    ):
      self.cohort.view, self.cohort.arrived_secs = members.view(number, 0, 2), {number: 11.0}.get
      change = make_change((0, 2), (4, 5), reason=f"as of view {number}")
      self.lose(make_agreement(change=change, lost=frozenset(lost), victims=victims))
    told = [(r.view, r.nodes, r.victims, r.rung, r.reason) for r in self.deaths.recoveries]
    self.assertEqual(
        told,
        [
            (2, (1,), ("0/1",), "checkpoint", "as of view 5"),
            (4, (3,), ("1/1",), "checkpoint", "as of view 5"),
        ],
    )

  def test_counts_for_prometheus(self):
    recovery = self.lose(make_agreement())
    none = {"deaths": 0, "recoveries": 0, "pause_seconds": 0}
    self.assertEqual(self.deaths.find_totals(), none)  # Its step goes on.
    recovery.ready_at_secs, recovery.step_end_at_secs = 10.75, 11.0
    one = {"deaths": 1, "recoveries": 1, "pause_seconds": 1.0}
    self.assertEqual(self.deaths.find_totals(), one)

  def test_a_loss_in_steps_that_are_done_again(self):
    recovery = self.lose(make_agreement())
    self.deaths.roll_back(7)
    self.assertEqual(recovery.step, 8)
    recovery.step_end_at_secs = 0.0  # A time as any other.
    self.deaths.roll_back(3)
    self.assertEqual(recovery.step, 8)
    self.assertEmpty(self.deaths.end_step(8, None))  # It is over.
    self.assertEqual(recovery.step_end_at_secs, 0.0)

  @parameterized.named_parameters(
      ("owed", {2: (0.5, 2.5)}, (11.0, 13.0)),
      ("nothing_owed", {}, (None, None)),
      ("not_measured", None, None),
  )
  def test_the_commit_of_the_step_in_which_it_happened(self, owed, span):
    recovery = self.lose(make_agreement())
    recovery.ready_at_secs = 10.5
    measured = None if owed is None else step_lib.Measured(owed=owed)
    found = [self.deaths.end_step(step, measured) for step in (21, 22, 23)]
    self.assertEqual(found, [[], [recovery], []])
    self.assertIsNotNone(recovery.step_end_at_secs)
    self.assertEqual(recovery.are_owed_measured, span is not None)
    got = recovery.first_owed_at_secs, recovery.last_owed_at_secs
    self.assertEqual(got, span or (None, None))

  def test_a_wait_for_others_to_join_is_no_part_of_it(self):
    recoveries = [self.lose(make_agreement())]
    self.deaths.excuse(22, 5.0)
    self.deaths.excuse(23, 1e9)
    self.cohort.view, self.cohort.arrived_secs = members.view(3, 0, 2), {3: 20.0}.get
    recoveries.append(self.lose(make_agreement(lost=frozenset({3}))))  # After the wait.
    self.deaths.end_step(22, None)
    waited, other = (r.step_end_at_secs for r in recoveries)
    self.assertBetween(other - waited, 4.9, 5.1)

  @parameterized.parameters(
      ({}, "its shadow n0 took over"),
      ({"change": make_change((0, 2), rung="reroute", rolls_back=False)}, "reroute: 0/1 have no c"),
      ({"change": make_change((0, 2)), "restored": 20}, "restoring step 20"),
      ({"change": make_change((0, 2))}, "beginning from the start"),
  )
  def test_what_is_said_of_a_view(self, changes, text):
    agreement = make_agreement(**changes)
    self.lose(agreement)
    self.assertStartsWith(self.deaths.describe(agreement), f"n1 (stage 0/1) died; {text}")

  @parameterized.named_parameters(
      ("one", [(0, 1), (2, 4)], "repair: n4 takes stage 1/1; programs are loaded"),
      (
          "many",
          [(4, 0), (1, 2), (3, 4)],
          "repair: n4 takes stage 0/0, n0 takes stage 0/1, node 1 takes stage "
          "1/0, n2 takes stage 1/1, 2 more; programs are loaded",
      ),
      ("none", [(0, 1), (2, 3)], "repair: a replica; programs are loaded"),
  )
  def test_what_is_said_of_a_change(self, rows, text):
    change = make_change(*rows, rung="repair", reason="a replica")
    self.assertEqual(self.deaths.describe_change(change), text)
    change = make_change(*rows, rung="none", reason="no node that trains is lost")
    self.assertEqual(self.deaths.describe_change(change), "programs are loaded")
