"""The command of the first minute, on a small model."""

from tests import folders
from tests.launch import commands

_FAULTS = "step,node,at,kind\n0,0/0,0,kill\n"


class QuickstartTest(folders.FolderCase):

  # Trains twice, in processes of their own: 15 s.
  def test_runs_with_and_without_deaths_end_alike(self):
    (self.folder / "faults.csv").write_text(_FAULTS)
    done = commands.run(
        "-m",
        "launch.quickstart",
        "--config=tests/tiny.py",
        f"--workdir={self.folder}/runs",
        "--config.redundancy.mode=eager",
        "--config.num_steps=2",
        "--config.checkpoint.every_steps=0",
        "--config.pipeline.num_shares=2",
        f"--faults={self.folder}/faults.csv",
    )
    self.assertEqual(done.returncode, 0, done.stderr)
    self.assertRegex(
        done.stdout,
        r"(?s)\n +1 .*n0 \(stage 0/0\) died; its shadow n1 took over.*\n +2 .*"
        r"1 node died\. The step with a death took .*\ncontrol: step 2 of the "
        r"first run again without one of its 2 shares ends in another state, "
        r"[0-9a-f]{64}\nidentical\nNext:\n",
    )
    self.assertTrue((self.folder / "runs" / "losses.png").exists())
