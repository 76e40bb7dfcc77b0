"""A worker that hangs writes its stacks before it is killed."""

import asyncio
import pathlib
import sys
import tempfile
import unittest

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


class WorkerProcessTest(unittest.IsolatedAsyncioTestCase):

  # A second: it starts a process.
  async def test_stacks_of_a_hanging_worker(self):
    folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    said = asyncio.Queue()
    worker = worker_process.WorkerProcess()
    log = folder / "n0.log"
    command = [sys.executable, "-c", _HANGS]
    await worker.start(command, log=str(log), on_message=said.put_nowait)
    await asyncio.wait_for(said.get(), 60)  # It is ready, and hangs.
    self.assertTrue(worker.is_busy())  # Up to now.
    worker.kill_hanging()
    self.assertEqual(await asyncio.wait_for(worker.wait(), 60), -9)
    self.assertIn("hang_here", log.read_text())
    await worker.close()
