"""The last that a worker writes: its stacks if it hangs, and its last message."""

import asyncio
import os
import pathlib
import signal
import sys
import tempfile
import unittest

from absl.testing import parameterized

from bamboo_jax.cluster import messages
from bamboo_jax.cluster.agent import worker_process

_HANGS = """
import faulthandler, signal, socket, sys, threading
from bamboo_jax.cluster import messages

faulthandler.register(signal.SIGUSR1)
sock = socket.socket(fileno=int(sys.argv[1]))

def hang_here():
  sock.sendall(messages.encode(messages.Beat()))
  threading.Event().wait()

hang_here()
"""

_LEAVES_A_CHILD = """
import os, socket, sys, threading
from bamboo_jax.cluster import messages

sock = socket.socket(fileno=int(sys.argv[1]))
sock.recv(1)
sock.sendall(messages.encode(messages.Say(is_done=True)))
if not (child := os.fork()):
  threading.Event().wait()  # It holds the socket.
print(child)
"""


class WorkerProcessTest(parameterized.TestCase, unittest.IsolatedAsyncioTestCase):

  # A second: it starts a process.
  @parameterized.parameters(False, True)
  async def test_a_worker_that_hangs(self, is_stopped):
    log = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()), "n0.log")
    said = asyncio.Queue()
    worker = worker_process.WorkerProcess()
    command = [sys.executable, "-c", _HANGS]
    await worker.start(command, log=str(log), on_message=said.put_nowait)
    await asyncio.wait_for(said.get(), 60)  # It is ready, and hangs.
    self.assertTrue(worker.is_busy())  # Up to now.
    self.assertFalse(worker.is_stopped())
    if is_stopped:
      os.kill(worker._process.pid, signal.SIGSTOP)
      os.waitid(os.P_PID, worker._process.pid, os.WSTOPPED | os.WNOWAIT)
      self.assertTrue(worker.is_stopped())
    worker.kill_hanging()
    self.assertEqual(await asyncio.wait_for(worker.wait(), 60), -9)
    self.assertEqual("hang_here" in log.read_text(), not is_stopped)
    await worker.close()

  async def test_the_last_message_is_read_before_its_end_counts(self):
    log = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()), "n0.log")
    said = asyncio.Queue()
    worker = worker_process.WorkerProcess()
    command = [sys.executable, "-c", _LEAVES_A_CHILD]
    await worker.start(command, log=str(log), on_message=said.put_nowait)
    worker.send(messages.Beat())
    self.assertEqual(await asyncio.wait_for(worker.wait(), 60), 0)
    self.addCleanup(os.kill, int(log.read_text()), signal.SIGKILL)
    self.assertTrue(said.get_nowait().is_done)
    await worker.close()
