import dataclasses

from absl.testing import parameterized

from bamboo_jax.metrics import summary as summary_lib
from tests import folders, run_files

_SUMMARY = summary_lib.Summary(**run_files.SUMMARY)


class SummaryTest(folders.FolderCase):

  @parameterized.parameters((2.5, "loss 2.5000"), (None, "loss none"))
  def test_last_line(self, loss, want):
    summary = dataclasses.replace(_SUMMARY, final_loss=loss, more={"cost": {"secs": 9.04}})
    self.assertEqual(
        summary.render("runs/my run"),
        f"done in 9.0 s: 3 steps, 12 samples, {want}, 0 recoveries, state_sha256=a; "
        "next: bamboo report 'runs/my run'",
    )

  @parameterized.parameters("", "[]", "{}", '{"steps": 1}')
  def test_not_a_summary(self, text):
    path = self.folder / "summary.json"
    path.write_text(text)
    with self.assertRaisesRegex(ValueError, "summary.json is not a summary"):
      summary_lib.read_summary(path)

  @parameterized.parameters(
      ([], None), ([9.0], 9.0), ([9.0, 1.0], 1.0), ([9.0, 1.0, 2.0, 6.0], 2.0)
  )
  def test_median_but_first(self, values, want):
    self.assertEqual(summary_lib.median_but_first(values), want)

  def test_result(self):
    more = {"recoveries": [{"step": 10, "rung": "shadow"}]}
    lines = [{"event": "start", "step": 0}, {"step": 1, "loss": 0.75}, {"step": 2, "loss": 0.5}]
    lines.append({"event": "eval", "step": 2, "loss": 9.0})
    run_files.write(self.folder, lines, summary=run_files.SUMMARY | more)
    found = summary_lib.read_result(self.folder)
    self.assertEqual(found.summary, dataclasses.replace(_SUMMARY, more=more))
    self.assertEqual((found.workdir, found.steps), (self.folder, 3))
    self.assertEqual(found.losses, {1: 0.75, 2: 0.5})
    self.assertEqual(found.recoveries, more["recoveries"])
    self.assertEqual((found.params_sha256, found.state_sha256), ("p", "a"))
    self.assertEqual(str(found), "3 steps, 12 samples, loss 2.5000, 1 recovery, state_sha256=a")
