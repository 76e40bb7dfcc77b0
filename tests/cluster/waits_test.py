"""What workers say they wait for."""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from unittest import mock

from absl.testing import parameterized

from bamboo_jax.cluster import waits
from bamboo_jax.local_cluster import inquiry

_WORKER = """
import faulthandler, signal, sys, time
from bamboo_jax.cluster import waits
from bamboo_jax.schedule import channel
faulthandler.register(signal.SIGUSR1)
waits.tell_on_signal(5, lambda: channel.Begun(waits_for=(3, 7)))
print("ready", file=sys.stderr, flush=True)
def hang():
  time.sleep(60)
hang()
"""


_LAST = waits.Waits(1, [])


class WaitsTest(parameterized.TestCase):

  @parameterized.parameters(
      ("a line\n{}\nanother\n{}\n", _LAST),  # The last one counts.
      ('  File "step.py"{1}step 7: loss=2.5\n', _LAST),  # In the line of another thread.
      ('  File "step.py"waits: [1, [2', None),
      ("a line", None),
  )
  def test_answers_in_a_log(self, text, want):
    self.assertEqual(waits.parse(text.format(waits.Waits(1, [2]), _LAST)), want)

  def test_an_answer_is_one_write(self):
    script = _WORKER.replace("hang()\n", "") + (
        "import os\n"
        "class Log:\n"
        "  def write(self, text): os.write(2, f'[{text}]'.encode())\n"
        "  def flush(self): pass\n"
        "sys.stderr = Log()\n"
        "os.kill(os.getpid(), signal.SIGUSR2)\n"
        "sys.stdin.read()\n"
    )
    worker = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    self.addCleanup(worker.kill)
    self.assertEqual(worker.stderr.readline(), "ready\n")
    self.assertRegex(worker.stderr.readline(), r"^\[waits: \[.*]$")
    self.assertEqual(worker.stderr.read(1), "]")
    worker.communicate()  # Ends its input.


class InquiryTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    folder = self.enterContext(tempfile.TemporaryDirectory())
    self.logs = pathlib.Path(folder, "logs")
    self.logs.mkdir()

  def start(self, name, *arguments):
    """Starts a process that hangs, and waits until it can be asked."""
    log = self.logs / f"{name}.log"
    with open(log, "ab") as file:
      process = subprocess.Popen([sys.executable, "-c", _WORKER, *arguments], stderr=file)
    self.addCleanup(process.wait)
    self.addCleanup(process.kill)
    while b"ready" not in log.read_bytes():
      time.sleep(0.01)
    return process

  def test_a_child_of_a_worker_is_not_taken_for_it(self):
    script = """if True:
      import os, sys, time
      end, other = os.pipe()
      if not os.fork():
        os.close(other)
        os.read(end, 1)  # Until its parent ends.
        os._exit(0)
      print("ready", file=sys.stderr, flush=True)
      time.sleep(60)
    """
    with mock.patch.dict(globals(), _WORKER=script):
      worker = self.start("n4", "-m", "bamboo_jax.launch.worker")
    self.assertEqual(inquiry.find_workers(self.logs), {"n4": worker.pid})

  def test_who_waits_for_whom(self):
    found = {"n2": (2, [0, 9]), "n0": (0, []), "n1": (1, [2])}
    replies = [inquiry.WorkerReply(n, 7, "", waits.Waits(*w)) for n, w in found.items()]
    self.assertEqual(
        inquiry.render(replies)[7:],
        [
            "n0 waits for no node",
            "n1 waits for n2",
            "n2 waits for n0, node 9",
            "waited for, and waiting for no node: n0, node 9",
        ],
    )
    self.assertEqual(inquiry.render(replies[1:2])[3:], ["n0 waits for no node"])

  @parameterized.parameters(
      ("n1", ["n0"], {"n0": "10.0.0.7"}, "Unknown node 'n1'; did you mean 'n0'"),
      ("n2", [], {}, "The run has ended: no node of it is alive."),
      (
          "n1",
          ["n0"],
          {"n0": "10.0.0.7", "n1": "10.0.0.8"},
          "No worker of node n1 runs on this machine. Its agent is at 10.0.0.8",
      ),
  )
  def test_a_worker_that_is_not_here(self, name, workers, hosts, message):
    said = inquiry.explain_missing(name, workers, hosts)
    self.assertStartsWith(said, message)
    self.assertNotIn("\n", said)

  def test_a_stopped_worker_is_named(self):
    worker = self.start("n4", "-m", "bamboo_jax.launch.worker")
    os.kill(worker.pid, signal.SIGSTOP)
    (answer,) = inquiry.ask({"n4": worker.pid}, self.logs, patience_secs=0.3)
    self.assertIsNone(answer.waits)
    self.assertIn("does not answer", inquiry.render([answer])[0])
