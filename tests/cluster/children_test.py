"""How processes ended, and what their logs say last."""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile

from absl.testing import parameterized

from bamboo_jax.cluster import children
from tests.launch import commands

_FIRST = """
import ctypes, os, subprocess, sys, time
from bamboo_jax.cluster import children
from tests.launch import commands

ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER
own = subprocess.Popen(["sh", "-c", "exit 3"])
command = "sleep 60 >/dev/null & echo $!"
orphan = int(subprocess.check_output(["sh", "-c", command]))
os.kill(orphan, 9)
pids, deadline = (own.pid, orphan), time.monotonic() + 60
while {children._read_stat(pid)[0] for pid in pids} != {"Z"}:
  assert time.monotonic() < deadline
children.reap_orphans({own.pid})  # Another process is the first.
assert os.path.exists(f"/proc/{orphan}")
children.reap_orphans({own.pid}, first=os.getpid())
print(os.path.exists(f"/proc/{orphan}"), own.wait())
"""


class ChildrenTest(parameterized.TestCase):

  def test_the_first_process_of_a_container_reaps_what_others_have_left(self):
    """One that adopts orphans stands for it; its own child is left alone."""
    done = commands.run("-c", _FIRST)
    self.assertEqual((done.stdout, done.stderr), ("False 3\n", ""))

  @parameterized.parameters(
      (0, "ended with exit status 0"),
      (3, "ended with exit status 3"),
      (-9, "was killed by SIGKILL"),
      (-99, "was killed by signal 99"),
  )
  def test_describe_exit(self, code, words):
    self.assertEqual(children.describe_exit(code), words)

  @parameterized.parameters(
      (children.die_with_parent, ["INT", "USR1"]),
      (children.end_with_parent, ["INT", "USR1", "TERM"]),
  )
  def test_signals_for_the_group_of_the_parent_are_not_for_it(self, begin, deaf):
    def begin_twice():  # A copy does, to become a worker.
      begin()
      begin()

    with subprocess.Popen(["sleep", "60"], preexec_fn=begin_twice) as process:
      self.assertEqual(os.getsid(process.pid), process.pid)
      for name in deaf:
        process.send_signal(signal.Signals[f"SIG{name}"])
      process.kill()
    self.assertEqual(process.returncode, -signal.SIGKILL)

  def test_read_tail(self):
    with tempfile.TemporaryDirectory() as folder:
      path = pathlib.Path(folder, "log")
      self.assertEqual(children.read_tail(path, num_lines=2), "(No such file or directory)")
      for lines, tail in (
          (["a"], "a"),
          (["a", "b", "c"], "b\nc"),
          (["x" * 9000, "b"], "x" * 8189 + "\nb"),  # Not more than 8 KiB.
      ):
        path.write_text("".join(f"{line}\n" for line in lines))
        self.assertEqual(children.read_tail(path, num_lines=2), tail)

  def test_a_process_that_is_not_there(self):
    self.assertGreater(children.cpu_ticks(os.getpid()), 0)
    self.assertEqual(children.cpu_ticks(1 << 30), 0)
    self.assertFalse(children.is_stopped(1 << 30))

  def test_find_exit(self):
    child = subprocess.Popen(["sleep", "60"])
    self.addCleanup(child.wait)
    self.assertIsNone(children.find_exit(child.pid))
    child.kill()
    other = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    for one, want in ((child, -signal.SIGKILL), (other, 3)):
      while (code := children.find_exit(one.pid)) is None:
        continue
      self.assertEqual((code, one.wait()), (want, want))
      self.assertIsNone(children.find_exit(one.pid))
