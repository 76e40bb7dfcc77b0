"""A copy of a process is a child as any other, and runs what it is told.

The copies are of a process of their own: pytest has threads.
"""

import json
import os
import pathlib
import signal
import tempfile
import time

from absl.testing import absltest

from bamboo_jax.cluster import children
from tests.launch import commands


def call(*arguments):
  """Returns what a function of `copier` returns, and its errors."""
  ended = commands.run("-m", "tests.cluster.copier", "--name=a", *arguments)
  assert ended.returncode == 0, ended.stderr
  return json.loads(ended.stdout), ended.stderr


class CopiesTest(absltest.TestCase):

  def test_ends_as_any_process(self):
    codes, errors = call("ends")
    self.assertEqual(codes, [0, 3, 1, 1, -9, -9, -9])
    self.assertIn("ValueError: this copy fails", errors)

  def test_has_no_file_that_it_is_not_given(self):
    (kept, lost), _ = call("files")
    self.assertStartsWith(kept, "pipe:")
    self.assertEqual(lost, "/dev/null")

  def test_reads_data_that_the_original_has_opened(self):
    with tempfile.TemporaryDirectory() as folder:
      path = pathlib.Path(folder, "tokens.bin")
      path.write_bytes(b"aabbcc")
      said, _ = call("data", str(path))
    self.assertEqual(said, ["aa", "bb", "bb", "bb"])

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
    with tempfile.TemporaryDirectory() as folder:
      log = pathlib.Path(folder, "log")
      said, _ = call("spare", str(log))
      self.assertEqual(said, ["b got for the command, SIGTERM is ignored: True", 0])
      # In the form of a command that has just begun.
      self.assertRegex(log.read_text(), r"I\d{4} .*\] b is a copy: True\nnull")
