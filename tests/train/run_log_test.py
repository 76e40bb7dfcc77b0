"""What one member records of deaths, and how it explains a pause."""

import dataclasses
import types

from absl.testing import absltest, parameterized

from bamboo_jax.accounting import account as account_lib
from bamboo_jax.base import types as base_types
from bamboo_jax.recovery import (
    agreement as agreement_lib,
    assignment,
    ladder as ladder_lib,
    layout as layout_lib,
)
from bamboo_jax.runtime import executor as executor_lib
from bamboo_jax.schedule import failover, instruction, redundancy, timeline as timeline_lib
from bamboo_jax.train import failures, step as step_lib
from bamboo_jax.train.record import run_log
from tests import layouts, members, schedules

_Op = instruction.Op
_Roles = failover.Roles


def make_layout(*rows):
  shares = tuple((i,) for i in range(len(rows)))
  return layouts.make_layout(tuple(map(_Roles, rows)), shares)


def make_agreement(**changes):
  given = dict(
      steps=21,
      known_version=0,
      version=1,
      rollbacks=0,
      layout=make_layout((0, 0), (2, 3)),
      holdings={},
      lost=frozenset({1}),
      victims=(base_types.Place(0, 1),),
      rung="shadow",
      reason="every lost stage has a live shadow",
      change=None,
      restored=0,
      is_fresh=False,
  )
  return agreement_lib.Agreement(**given | changes)


def make_change(*rows, **changes):
  given = dict(rung="checkpoint", reason="0/1 have no copy", rolls_back=True)
  return assignment.Decision(layout=make_layout(*rows), **given | changes)


class RunLogTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.said, self.written = [], []
    self.cohort = types.SimpleNamespace(
        view=members.view(2, 0, 2, 3, reason="n4 joined"),
        newest=members.view(2, 0, 2, 3),
        arrived_secs={2: 10.0}.get,
        died_secs={2: None}.get,
        hosted=frozenset({0}),
    )
    self.state = types.SimpleNamespace(
        rules=types.SimpleNamespace(ladder=ladder_lib.Ladder()),
        num_skipped=0,
        writer=types.SimpleNamespace(say=lambda step, after: None),
        cohort=self.cohort,
        engine=None,
        layout=make_layout((0, 1), (2, 3)),
        steps=21,
    )
    outputs = types.SimpleNamespace(
        explain=lambda text, at_once=False: self.said.append(text),
        roll_back=lambda steps: None,
        write_step=self.written.append,
    )
    self.log = run_log.RunLog(self.state, outputs)

  def lose(self, agreement, *, knows=True):
    if knows:
      self.log.meet(members.view(1, 0, 1, 2, 3))
    self.log.meet(self.cohort.view)
    said = [{1: 0.5}, {}, {1: 0.25}]
    self.log.add_loss(agreement, silent_secs=said, agreed_at_secs=10.5)
    return self.log._recoveries[-1]

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
    self.log.note_ready()
    ready_secs = recovery.ready_at_secs
    self.assertIsNotNone(ready_secs)
    self.log.note_ready()
    self.assertEqual(recovery.ready_at_secs, ready_secs)

  def test_counts_for_prometheus(self):
    recovery = self.lose(make_agreement())
    none = {"deaths": 0, "recoveries": 0, "pause_seconds": 0}
    self.assertEqual(self.log._find_totals(), none)  # Its step goes on.
    recovery.ready_at_secs, recovery.step_end_at_secs = 10.75, 11.0
    one = {"deaths": 1, "recoveries": 1, "pause_seconds": 1.0}
    self.assertEqual(self.log._find_totals(), one)

  def test_what_filled_waits(self):
    step = types.SimpleNamespace(
        planned_passes=None,
        executor=types.SimpleNamespace(filler=executor_lib.Filler()),
        result=lambda **facts: facts,
    )
    row = [
        timeline_lib.Slot(0, instruction.Instruction(0, op, 0), at, at + 10.0)
        for op, at in ((_Op.FORWARD, 0.0), (_Op.BACKWARD, 10.0))
    ]
    bare = timeline_lib.Timeline(tuple(row), (0,), 20.0)
    step.executor.filler.plan(
        redundancy.StepFilling([redundancy.PlannedRows(bare, {}, schedules.uniform_costs(1))])
    )
    ran = redundancy.Ran((10_000, 30_000), (redundancy.Filled(1, 1, 0, 20_000),), 120_000)
    vote = step_lib.Vote(seen=1, ran={0: ran})
    self.state.is_writer = False
    self.log.commit(step, {0: vote}, saves=False)
    (facts,) = self.written
    want = redundancy.Effect(1, 0.5, 0.0, stretch=4.0)
    self.assertEqual((facts["filled"], facts["predicted"]), (want, redundancy.Effect(0, 0.0, 0.0)))
    # 80 of 120 ms, instead of 20.
    self.assertEqual(step.executor.filler.stretch, 4.0)
    self.log.commit(step, {0: dataclasses.replace(vote, ran={})}, saves=False)
    self.assertNotIn("filled", self.written[-1])  # A node has died.

  def test_a_loss_in_steps_that_are_done_again(self):
    recovery = self.lose(make_agreement())
    self.log.roll_back(7)
    self.assertEqual(recovery.step, 8)
    recovery.step_end_at_secs = 0.0  # A time as any other.
    self.log.roll_back(3)
    self.assertEqual(recovery.step, 8)

  def test_the_vote_on_the_step_in_which_it_happened(self):
    recovery = self.lose(make_agreement())
    forward = types.SimpleNamespace(op=_Op.FORWARD, stage=1)
    # The first was still running at the death.
    passes = [
        types.SimpleNamespace(instruction=forward, start_secs=start, end_secs=end)
        for start, end in ((10.25, 11.75), (11.0, 12.0), (12.0, 12.5))
    ]
    step = types.SimpleNamespace(
        measured=passes,
        start_secs=9.0,
        planned_passes=account_lib.NodeTime(),
        sums_secs=0.0,
        nodes={},
        num_skipped=0,
        executor=types.SimpleNamespace(filler=executor_lib.Filler()),
        find_nonfinite=lambda: "",
        take_prints=lambda: None,
    )
    none = failures.Failure()
    vote = lambda: self.log.vote(seen=2, ready=2, stops=False, failure=none, step=step)
    self.assertEqual(vote().owed, {})  # Nothing is planned yet.
    recovery.ready_at_secs = 10.5
    self.assertEqual(vote().owed, {2: (0.5, 2.0)})
    self.state.steps = 22
    self.assertEqual(vote().owed, {})

  @parameterized.named_parameters(
      ("owed", [{2: (0.5, 1.5)}, {2: (1.0, 2.5)}], None, (11.0, 13.0)),
      ("nothing_owed", [{}], None, (None, None)),
      ("votes_were_not_heard", [], None, None),
      ("programs_are_not_measured", [{}], account_lib.NodeTime(), None),
  )
  def test_the_commit_of_the_step_in_which_it_happened(self, owed, planned_passes, span):
    recovery = self.lose(make_agreement())
    recovery.ready_at_secs = 10.5
    votes = {
        number: types.SimpleNamespace(
            passes=account_lib.NodeTime(), span_secs=1.0, sums_secs={}, owed=one, ran={}
        )
        for number, one in enumerate(owed)
    }
    step = types.SimpleNamespace(
        planned_passes=planned_passes,
        executor=types.SimpleNamespace(filler=executor_lib.Filler()),
        result=lambda **facts: facts,
    )
    self.state.is_writer = False
    for steps in (21, 22, 23):
      self.state.steps = steps
      self.log.commit(step, votes, saves=False)
    found = [facts["recoveries"] for facts in self.written]
    self.assertEqual(found, [(), (recovery,), ()])
    self.assertIsNotNone(recovery.step_end_at_secs)
    self.assertEqual(recovery.are_owed_measured, span is not None)
    got = recovery.first_owed_at_secs, recovery.last_owed_at_secs
    self.assertEqual(got, span or (None, None))

  def test_a_newcomer_does_not_know_the_names_of_the_dead(self):
    recovery = self.lose(make_agreement(), knows=False)
    self.assertEqual(recovery.names, ("node 1",))

  def test_names_of_those_without_a_role_are_forgotten(self):
    for number in range(5, 9):
      self.log.meet(members.view(number, 0, 2, 3, number))
    self.assertEqual({*self.log._names}, {0, 2, 3, 8})

  @parameterized.named_parameters(
      ("shadow", {}, "n1 (stage 0/1) died; its shadow n0 took over"),
      (
          "reroute",
          {"rung": "reroute", "reason": "others have it"},
          "n1 (stage 0/1) died; reroute: others have it",
      ),
      (
          "checkpoint",
          dict(rung="checkpoint", restored=20, change=make_change((0, 2))),
          "n1 (stage 0/1) died; restoring step 20",
      ),
      (
          "from_the_start",
          dict(rung="checkpoint", change=make_change((0, 2))),
          "n1 (stage 0/1) died; beginning from the start",
      ),
      ("a_join", {"lost": frozenset(), "rung": "none"}, "n4 joined"),
  )
  def test_what_is_said_of_a_view(self, changes, text):
    agreement = make_agreement(**changes)
    if agreement.lost:
      self.lose(agreement)
    self.log.explain_view(agreement)
    self.assertEqual(self.said, [text])

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
    self.log.meet(members.view(2, 0, 2, 3, 4))
    change = make_change(*rows, rung="repair", reason="a replica")
    self.log.explain_change(change)
    self.assertEqual(self.said, [text])

  def test_find_takers_of_a_first_layout(self):
    got = make_layout((0, 1)).find_takers(layout_lib.Layout())
    places = [base_types.Place(0, 0), base_types.Place(0, 1)]
    self.assertEqual(got, [*zip((0, 1), places, strict=True)])


if __name__ == "__main__":
  absltest.main()
