"""The words of events, and their lines on a terminal."""

import io

from absl.testing import parameterized

from bamboo_jax.metrics import progress as progress_lib
from bamboo_jax.report import events
from tests.recovery import durations_test

_SLOW = dict(node="n2", host="h", factor=4.9, busy_ms=9.0)
_UPLOADED = dict(saved=18, mib=7.71, secs=0.2, mib_per_sec=36.9)


class EventsTest(parameterized.TestCase):

  def show(self, line):
    stream = io.StringIO()
    with progress_lib.ProgressLine(num_steps=2, stream=stream, pause_secs=600.0) as shown:
      events.show(shown, line)
    return stream.getvalue()

  @parameterized.parameters(
      ("slow", _SLOW, "slow: n2 on h, 4.9 times as slow as it should be"),
      ("slow", _SLOW | {"host": ""}, "slow: n2, 4.9 times as slow as it should be"),
      ("slow", _SLOW | {"named_before": 2}, "slow: n2 on h, named 2 times before, 4.9 times .*be"),
      (
          "recovery",
          durations_test.RECOVERY | {"step": 20},
          r"n1 \(stage 0/1\) died; its shadow n2 took over \(noticed .*, pause 2.50 s\)",
      ),
      ("saving", dict(reason="why"), "saving: why"),
      ("save_failed", dict(reason="Disk full."), "warning: Disk full. Training continues."),
      ("skipped", dict(reason="why"), "skipped: why"),
      ("damaged", dict(checkpoint=30), "warning: .* step 30 is damaged; .* from step 20[.]"),
      ("uploaded", _UPLOADED, "uploaded step 18: 7.7 MiB in 0.2 s, 36.9 MiB/s"),
  )
  def test_a_sentence_beside_the_step(self, name, values, want):
    line = {"step": 20, "event": name, **values}
    self.assertRegex(events.describe(line), f"^{want}$")
    self.assertEqual(self.show(line), f"step 20: {events.describe(line)}\n")

  @parameterized.parameters(
      ("warning", dict(text="text"), "warning: text", "warning: text\n"),
      ("changed", dict(text="text"), "text", "text\n"),
      ("layout", dict(owners=((0, 1),)), None, ""),
      ("start", {}, None, "resumed_from_step=20\n"),
      ("pause", dict(reason="n2 died", at_once=True), "n2 died", "n2 died\n"),
      ("pause", dict(reason="saving step 20"), "saving step 20", ""),  # It is short.
      ("join", dict(boot_secs={"7": 1.0, "8": 2.0}), "node 7, node 8 joined", ""),
      ("join", dict(boot_secs={"7": 1.0}, names=["n3"]), "n3 joined", ""),
      (
          "eval",
          dict(loss=3.07846, accuracy=0.5),
          None,
          "eval_step=20 eval_loss=3.0785 eval_accuracy=0.5000\n",
      ),
  )
  def test_others(self, name, values, sentence, shown):
    line = {"step": 20, "event": name, **values}
    self.assertEqual(events.describe(line), sentence)
    self.assertEqual(self.show(line), shown)

  def test_the_result_of_an_evaluation_ends_its_pause(self):
    with progress_lib.ProgressLine(num_steps=2, stream=io.StringIO(), pause_secs=600.0) as shown:
      events.show(shown, {"step": 4, "event": "pause", "reason": "evaluating after step 4"})
      reminder = shown._reason
      events.show(shown, {"step": 4, "event": "eval", "loss": 3.0})
      reminder.join(20.0)
      self.assertFalse(reminder.is_alive())  # It would say that it still evaluates.

  def test_own_metrics_in_lines_of_the_log(self):
    line = {"step": 1, "loss": 2.5, "top5": 0.75, "learning_rate": 0.5, "account": {}, "view": 1}
    said = self.show({**line, "grad_norm": 0.1, "images_per_sec": 2.0})
    self.assertEqual(said, "step=1 loss=2.5000 top5=0.75 lr=0.5 view=1\n")
