"""Explorations that are stopped go on; what they find is in the exit code."""

import pathlib
import tempfile

from absl.testing import absltest

from tests.launch import commands

_COMMAND = ("-m", "launch.explore", "--first_seed=5", "--seeds=4")


class ExploreTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    folder = self.enterContext(tempfile.TemporaryDirectory())
    self.path = pathlib.Path(folder) / "done"

  def explore(self, *flags):
    return commands.run(*_COMMAND, f"--done={self.path}", *flags)

  def test_goes_on(self):
    self.path.write_text("mode=kill first_seed=5 3 1")
    done = self.explore("--mode=kill")
    self.assertEqual(done.stdout, "histories=4 violations=1\n")
    self.assertEqual(done.returncode, 1)
    self.assertEqual(self.path.read_text(), "mode=kill first_seed=5 4 1")

  def test_begins(self):
    done = self.explore("--mode=kill", "--seeds=1")
    self.assertEqual(done.stdout, "histories=1 violations=0\n")
    self.assertEqual(self.path.read_text(), "mode=kill first_seed=5 1 0")

  def test_the_transport(self):
    done = self.explore("--mode=wire", "--seeds=50")
    self.assertEqual(done.stdout, "histories=50 violations=0\n")

  def test_what_others_have_done(self):
    for text in (
        "mode=stop first_seed=5 3 0",
        "mode=kill first_seed=5 x 0",
        "",
    ):
      self.path.write_text(text)
      done = self.explore("--mode=kill")
      self.assertEqual(done.returncode, 2)
      self.assertRegex(done.stderr, "^error: --done=.*, no counts of mode=kill")
      self.assertEqual(self.path.read_text(), text)
