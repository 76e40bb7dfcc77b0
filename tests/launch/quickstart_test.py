"""The command of the first minute, on a small model."""

import sys
from unittest import mock

from bamboo_jax.cli import flagset
from tests import folders
from tests.launch import commands

_FAULTS = "step,node,at,kind\n0,0/0,0,kill\n"


class QuickstartTest(folders.FolderCase):

  # Trains twice, in processes of their own: 15 s.
  def test_runs_with_and_without_deaths_end_alike(self):
    (self.folder / "faults.csv").write_text(_FAULTS)
    done = commands.run(
        *("-m", "launch.quickstart", "--config=tests/tiny.py"),
        *(f"--workdir={self.folder}/runs", "--config.redundancy.mode=eager"),
        *("--config.num_steps=2", "--config.checkpoint.every_steps=0"),
        "--config.pipeline.num_shares=2",
        f"--faults={self.folder}/faults.csv",
    )
    self.assertEqual(done.returncode, 0, done.stderr)
    self.assertRegex(
        done.stdout,
        r"(?s)\n +1 .*n0 \(stage 0/0\) died; n1 took over.*\n +2 .*"
        r"1 node died\. The step with a death took .*\ncontrol: step 2 of the "
        r"first run again without one of its 2 shares ends in another state, "
        r"[0-9a-f]{64}\nidentical\nNext:\n",
    )
    self.assertTrue((self.folder / "runs" / "losses.png").exists())

  def test_the_config_of_a_command_goes_to_its_children(self):
    flag = mock.Mock(boolean=False)
    for argv, want in (
        ((), ["--config=a"]),
        (("--config.seed", "3", "w"), ["--config=a", "--config.seed", "3"]),
        (("--config", "b", "--config.x.y=1"), ["--config=a", "--config.x.y=1"]),
    ):
      with (
          mock.patch.object(sys, "argv", ["command", *argv]),
          mock.patch.object(flagset, "given_config", return_value="a"),
          mock.patch.dict(flagset.flags.FLAGS.__dict__["__flags"], {"config.seed": flag}),
      ):
        self.assertEqual(flagset._config_argv(), want)

  # Starts Python three times: 10 s.
  def test_what_a_run_complains_about_is_shown(self):
    done = commands.run(
        *("-m", "launch.quickstart", f"--workdir={self.folder}"),
        "--config.plan.memory_limit_gib=1e-6",
    )
    self.assertEqual(done.returncode, 2)
    self.assertRegex(
        done.stderr,
        r"^error: The run '\w+' ended with exit status 2: .*MiB too much.*; "
        r"all that it said is in ",
    )
