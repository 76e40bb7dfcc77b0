"""What is measured is the run that was started."""

from absl.testing import absltest

from bamboo_jax.local_cluster import trial
from tests import folders


class TrialTest(folders.FolderCase):

  def test_a_run_of_before_is_not_taken_for_this_one(self):
    workdir = self.folder / "run"
    workdir.mkdir()
    line = '{{"step": {}, "step_ms": 1.0, "account": {{"secs": {}}}}}\n'
    log = "".join(line.format(step, 100 * step) for step in (1, 2))
    (workdir / "metrics.jsonl").write_text(log)
    with self.assertRaisesRegex(ValueError, "has a run, which would be taken"):
      trial.run([], workdir=workdir, secs=50.0)


if __name__ == "__main__":
  absltest.main()
