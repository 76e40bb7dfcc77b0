"""Times of recoveries as reports have them."""

from absl.testing import absltest

from bamboo_jax.recovery import times

RECOVERY = {  # As a run says it.
    "step": 3,
    "victims": ["0/1"],
    "rung": "shadow",
    "reason": "every lost stage has a live shadow",
    "view": 2,
    "nodes": [1],
    "view_at_secs": 10.5,
    "agreed_at_secs": 10.75,
    "ready_at_secs": 11.0,
    "first_owed_at_secs": 11.25,
    "last_owed_at_secs": 12.25,
    "step_end_at_secs": 13.0,
}


class RecoveriesTest(absltest.TestCase):

  def test_kill_times(self):
    (got,) = times.report([RECOVERY], {1: 10.0, 2: 9.0})
    self.assertEqual(
        got,
        {
            "step": 3,
            "victims": ["0/1"],
            "rung": "shadow",
            "view": 2,
            "detect_secs": 0.5,
            "consensus_secs": 0.25,
            "rebuild_secs": 0.25,
            "redo_secs": 1.0,
            "kill_to_first_instruction_secs": 1.25,
            "kill_to_step_end_secs": 3.0,
            "reason": "every lost stage has a live shadow",
        },
    )
