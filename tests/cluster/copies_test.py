"""A copy of a process is a child as any other, and runs what it is told.

The copies are of a process of their own: pytest has threads.
"""

import json
import os
import signal
import time

from absl.testing import parameterized

from bamboo_jax.cluster import children
from tests import folders
from tests.launch import commands


def call(*arguments):
  """Returns what a function of `copier` returns, and its errors."""
  ended = commands.run("-m", "tests.cluster.copier", "--name=a", *arguments)
  assert ended.returncode == 0, ended.stderr
  return json.loads(ended.stdout), ended.stderr


class CopiesTest(folders.FolderCase):

  def setUp(self):
    super().setUp()
    self.path = self.folder / "file"
    self.path.write_text("aabbcc")

  @parameterized.parameters(
      ("ends", [0, 3, 1, 1, -9, -9, -9], "ValueError: this copy fails"),
      ("files", ["pipe", "/dev/null"]),  # It has no file that it is not given.
      ("data", ["aa", "bb", "bb", "bb"]),  # Of a file that the original has opened.
  )
  def test_is_a_child_as_any_other(self, do, want, error=""):
    said, errors = call(do, str(self.path))
    self.assertEqual(said, want)
    self.assertIn(error, errors)

  def test_does_not_outlive_its_original(self):
    pid, _ = call("orphan")
    is_there = lambda: children._read_stat(pid)[:1] not in ([], ["Z"])
    end_secs = time.monotonic() + 10
    while is_there() and time.monotonic() < end_secs:
      pass
    if is_there():
      os.kill(pid, signal.SIGKILL)
      self.fail("It lives on.")

  def test_runs_a_command_as_python_does(self):
    said, _ = call("spare", str(self.path))
    self.assertEqual(said, ["b got for the command, SIGTERM is ignored: True", 0])
    # In the form of a command that has just begun.
    self.assertRegex(self.path.read_text(), r"I\d{4} .*\] b is a copy: True\nnull")
