"""Commands whose jobs run elsewhere: the same files, however they are split."""

from tests import folders, samples
from tests.launch import commands

_CONFIG = """
import pathlib
from tests.experiments import compare_test

def get_config():
  return compare_test.get_config(pathlib.Path(__file__).parent)
"""


class SweepsTest(folders.FolderCase):

  def run_command(self, command, *arguments, workdir="w"):
    done = commands.fork(
        "-m", f"launch.{command}", f"--workdir={self.folder / workdir}", *arguments
    )
    self.assertEqual(done.returncode, 0, done.stderr)
    return done.stdout

  def test_simulate(self):
    config = self.folder / "small.py"
    config.write_text(_CONFIG)
    flags = (f"--config={config}", "--num_processes=1", "--policies=bamboo+grid,checkpoint+grid")
    self.run_command("simulate", *flags, workdir="whole")
    for shard in ("2/2", "1/2"):
      said = self.run_command("simulate", *flags, f"--shard={shard}")
      self.assertRegex(said, rf"\nshard={shard} jobs=\d+ of \d+\n$")
      self.assertFalse((self.folder / "w/summary.csv").exists())
    self.run_command("simulate", *flags, "--merge=2")
    want = (self.folder / "whole/summary.csv").read_text()
    self.assertEqual((self.folder / "w/summary.csv").read_text(), want)
    self.assertFalse((self.folder / "w/jobs").exists())

  @samples.only_all
  def test_ablate(self):  # Trains three times.
    flags = (
        "--config=tests/tiny.py",
        "--sweep=redundancy.mode=none,eager",
        "--measure=losses",
        "--figure_format=svg",
    )
    said = self.run_command("ablate", *flags, "--shard=1/2")
    self.assertEndsWith(said, "\nshard=1/2 jobs=1 of 2\n")
    said = self.run_command("ablate", *flags, "--num_processes=2")
    self.assertRegex(said, r"\| eager \| none \| 1 \| 0 \| ")
    self.assertNotIn("step_ms", said)
    names = {path.name for path in (self.folder / "w").iterdir()}
    tables = {f"{n}.{s}" for n in ("means", "differences") for s in ("csv", "md", "tex")}
    runs = {f"redundancy.mode={mode}" for mode in ("none", "eager")}
    self.assertEqual(names, tables | runs | {"runs.csv", "ablation.svg"})
