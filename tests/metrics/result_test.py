import json
import pathlib
import tempfile

from absl.testing import absltest

from bamboo_jax.metrics import result

_SUMMARY = {
    "steps": 2,
    "final_loss": 0.5,
    "params_sha256": "aa",
    "state_sha256": "bb",
    "samples_seen": 8,
    "resumed_from_step": 0,
    "median_step_secs": 0.1,
    "bubble_fraction": None,
    "recoveries": [{"step": 2, "rung": "shadow"}],
}
_LINES = [
    {"event": "start", "step": 0},
    {"step": 1, "loss": 0.75},
    {"step": 2, "loss": 0.5},
    {"event": "eval", "step": 2, "loss": 9.0},
]


class ResultTest(absltest.TestCase):

  def test_read(self):
    root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    (root / "summary.json").write_text(json.dumps(_SUMMARY))
    text = "".join(json.dumps(line) + "\n" for line in _LINES)
    (root / "metrics.jsonl").write_text(text)
    found = result.read_result(root)
    self.assertEqual((found.workdir, found.steps), (root, 2))
    self.assertEqual(found.losses, {1: 0.75, 2: 0.5})
    self.assertEqual(found.recoveries[0]["rung"], "shadow")
    self.assertEqual((found.params_sha256, found.state_sha256), ("aa", "bb"))
    self.assertEqual(str(found), "2 steps, loss 0.5000, 1 recovery, state_sha256=bb")

  def test_needs_a_run(self):
    with self.assertRaises(FileNotFoundError):
      result.read_result(tempfile.gettempdir())


if __name__ == "__main__":
  absltest.main()
