"""Explorations that are stopped go on; what they find is in the exit code."""

import pickle

from tests import folders
from tests.launch import commands

_COMMAND = ("-m", "launch.explore", "--num_processes=1")


class ExploreTest(folders.FolderCase):

  def explore(self, *flags):
    return commands.fork(*_COMMAND, *flags)

  def test_goes_on(self):
    flags = ("--mode=kill", "--seeds=25", f"--workdir={self.folder}")
    done = self.explore(*flags, "--shard=2/3")
    self.assertEqual(done.stdout, "shard=2/3 jobs=1 of 3\n")
    (path,) = (self.folder / "jobs").iterdir()
    self.assertLen(pickle.loads(path.read_bytes()), 10)
    path.write_bytes(pickle.dumps([["seed=10 a violation"], *[[]] * 9]))
    done = self.explore(*flags, "--merge=3")
    self.assertEqual(done.returncode, 2)
    self.assertRegex(
        done.stderr, "^error: Shards are not complete: 1/3 has 0 of 1 jobs; 3/3 has 0 of 1"
    )
    done = self.explore(*flags, "--first")
    self.assertEqual(done.stdout, "seed=10 a violation\nhistories=11 violations=1\n")
    done = self.explore(*flags)
    self.assertEqual(done.stdout, "seed=10 a violation\nhistories=25 violations=1\n")
    self.assertEqual(done.returncode, 1)
    self.assertEmpty([*self.folder.iterdir()])  # What was kept is used up.

  def test_the_transport(self):
    done = self.explore("--mode=wire", "--seeds=50")
    self.assertEqual(done.stdout, "histories=50 violations=0\n")
    self.assertEqual(done.returncode, 0)
