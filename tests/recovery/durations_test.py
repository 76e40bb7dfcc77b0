"""Times of recoveries as reports have them."""

from absl.testing import parameterized

from bamboo_jax.recovery import durations

RECOVERY = {  # As a run says it.
    "step": 3,
    "victims": ["0/1"],
    "rung": "shadow",
    "heirs": ["n2"],
    "reason": "every lost stage has a live shadow",
    "view": 2,
    "nodes": [1],
    "names": ["n1"],
    "view_at_secs": 10.5,
    "died_at_secs": None,
    "silence_to_view_secs": 0.4,
    "agreed_at_secs": 10.75,
    "ready_at_secs": 11.0,
    "are_owed_measured": True,
    "first_owed_at_secs": 11.25,
    "last_owed_at_secs": 12.25,
    "step_end_at_secs": 13.0,
}
_TWO = {"nodes": [1, 4], "names": ["n1", "n4"], "victims": ["0/1", "1/1"]}
_NEVER_READY = {"ready_at_secs": None}
_NOTHING_OWED = {"first_owed_at_secs": None, "last_owed_at_secs": None}


class OrderTest(parameterized.TestCase):

  @parameterized.parameters(
      ({}, ""),
      ({"died_at_secs": 10.75}, "view_at_secs is 0.25 before died"),
      # A pass that was running.
      ({"first_owed_at_secs": 10.5}, "first_owed_at_secs is 0.5 before ready_at_secs"),
      ({**_NEVER_READY, "first_owed_at_secs": 10.5}, "first_owed_at_secs is 0.25 before agreed_at"),
      ({"step_end_at_secs": 12.0}, "step_end_at_secs is 0.25 before last"),
  )
  def test_events_are_in_order(self, changes, expected):
    found = durations.find_disorder(RECOVERY | changes)
    self.assertStartsWith(found, expected)
    self.assertEqual(bool(found), bool(expected))

  @parameterized.named_parameters(
      ("nothing_owed", None, None, None),
      ("two_members", (0.125, 1.0), 11.125, 12.0),
      ("ready_apart", (0.25, 2.5), 11.25, 13.0),
  )
  def test_owed_passes_are_after_the_plan(self, span, first, last):
    fields = durations.RecoveryTimes.__dataclass_fields__.keys() & RECOVERY.keys()
    one = durations.RecoveryTimes(**{k: (RECOVERY | _NOTHING_OWED)[k] for k in fields})
    one.set_owed(span)
    found = one.first_owed_at_secs, one.last_owed_at_secs
    self.assertEqual(found, (first, last))


class ReportTest(parameterized.TestCase):

  def test_a_death_that_was_timed(self):
    (got,) = durations.report([RECOVERY], {1: 10.0, 2: 9.0})
    same = ("step", "nodes", "names", "victims", "rung", "heirs", "view", "silence_to_view_secs")
    self.assertEqual(
        got,
        {name: RECOVERY[name] for name in (*same, "reason")}
        | {
            "detect_secs": 0.5,
            "consensus_secs": 0.25,
            "rebuild_secs": 0.25,
            "redo_secs": 1.0,
            "kill_to_first_instruction_secs": 1.25,
            "kill_to_step_end_secs": 3.0,
            "pause_secs": 3.0,
        },
    )

  def test_kills_are_found_again(self):
    lines = [RECOVERY, RECOVERY | {"step": 5, "view": 3, "nodes": [2], "names": ["n2"]}]
    reported = durations.report(lines, {1: 10.0})
    found = durations.find_kills(lines, reported)
    self.assertEqual(found, {1: 10.0})
    self.assertEqual(durations.report(lines, found), reported)
    # A later life, which no summary knows yet.
    later = RECOVERY | {"step": 9, "view": 7, "view_at_secs": 99.0}
    self.assertEqual(durations.find_kills([*lines, later], reported), {})

  @parameterized.named_parameters(
      ("nobody_has_timed_it", {}, {}, None),
      ("others_were_killed", {}, {2: 9.0}, None),
      ("killed_after_the_view", {}, {1: 10.6}, None),
      ("killed_with_the_view", {}, {1: 10.5}, 0.0),
      ("one_of_two_was_timed", _TWO, {1: 10.0}, None),
      ("two_were_timed", _TWO, {1: 10.0, 4: 10.2}, 0.5),
      ("one_of_two_was_killed_later", _TWO, {1: 10.0, 4: 11.0}, None),
      ("the_member_knows", {"died_at_secs": 10.25}, {}, 0.25),
  )
  def test_when_it_died(self, changes, kills, detect_secs):
    (got,) = durations.report([RECOVERY | changes], kills)
    self.assertEqual(got["detect_secs"], detect_secs)
    since = lambda end: None if detect_secs is None else end + detect_secs
    self.assertEqual(got["kill_to_first_instruction_secs"], since(0.75))
    self.assertEqual(got["kill_to_step_end_secs"], since(2.5))
    self.assertEqual(got["pause_secs"], 2.5 + (detect_secs or 0.0))

  @parameterized.parameters(
      (_NOTHING_OWED, "redo_secs", 0.0),
      ({**_NOTHING_OWED, "are_owed_measured": False}, "redo_secs", None),
      (_NEVER_READY, "rebuild_secs", None),
      ({"step_end_at_secs": None, "died_at_secs": 10.0}, "kill_to_step_end_secs", None),
      ({"silence_to_view_secs": None}, "silence_to_view_secs", None),
  )
  def test_what_was_not_measured(self, changes, name, secs):
    (got,) = durations.report([RECOVERY | changes], {})
    self.assertEqual(got[name], secs)

  @parameterized.parameters(
      (
          {"died_at_secs": 10.25},
          "n1 (stage 0/1) died; its shadow n2 took over (noticed after 0.25 s, agreed in 0.25 s, "
          "redone in 1.00 s, pause 2.75 s)",
      ),
      (
          _NOTHING_OWED,
          "n1 (stage 0/1) died; its shadow n2 took over (noticed after: unknown, not heard for "
          "0.40 s, agreed in 0.25 s, nothing redone, pause 2.50 s)",
      ),
      (
          {"rung": "checkpoint", "reason": "0/1 have no copy", "heirs": []},
          "n1 (stage 0/1) died; checkpoint: 0/1 have no copy (noticed after: unknown, not heard "
          "for 0.40 s, agreed in 0.25 s, redone in 1.00 s, pause 2.50 s)",
      ),
      (
          {**_TWO, **_NOTHING_OWED, "heirs": ["n2", "n5"]}
          | {"silence_to_view_secs": None, "are_owed_measured": False},
          "n1 and n4 (stages 0/1, 1/1) died; their shadows n2 and n5 took over (noticed after: "
          "unknown, not heard for: unknown, agreed in 0.25 s, redone in: unknown, pause 2.50 s)",
      ),
  )
  def test_sentence(self, changes, text):
    (got,) = durations.report([RECOVERY | changes], {})
    self.assertEqual(durations.describe(got), text)
