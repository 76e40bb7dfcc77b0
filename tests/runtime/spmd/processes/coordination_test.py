"""Real processes that come, die, and connect with each other.

The nodes are forked from a process that has imported JAX.
"""

import multiprocessing
from multiprocessing import connection, process as process_lib
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple
from unittest import mock

from absl.testing import absltest, parameterized

from bamboo_jax.runtime.spmd.processes import private_jax
from tests import coordination_worker, strangers

_ROOT = pathlib.Path(__file__).resolve().parents[4]
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload([coordination_worker.__name__])


class Node(NamedTuple):
  """A process, and our end of the pipe over which it is told what to do."""

  process: process_lib.BaseProcess
  pipe: connection.Connection


class NodesTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.nodes, self.addresses, self.attempt = {}, {}, 0

  def start(self, *numbers, **options):
    """Starts nodes, and waits until they are there."""
    for number in numbers:
      ours, theirs = _CONTEXT.Pipe()
      process = _CONTEXT.Process(
          target=coordination_worker.live, args=(number, theirs), kwargs=options
      )
      process.start()
      theirs.close()  # So its end is heard.
      self.addCleanup(process.join)
      self.addCleanup(process.kill)
      self.nodes[number] = Node(process, ours)
    for number in numbers:
      self.addresses[number] = self.nodes[number].pipe.recv()

  def kill(self, number):
    process, _ = self.nodes.pop(number)
    process.kill()
    process.join()

  def tell(self, **task):
    self.attempt += 1
    task |= {"addresses": self.addresses, "attempt": self.attempt}
    for node in self.nodes.values():
      node.pipe.send(task)

  def work(self, **task):
    """Returns what all say after a task; none may fail."""
    self.tell(**task)
    said = {n: node.pipe.recv() for n, node in self.nodes.items()}
    for n, words in said.items():
      self.assertIsNone(words["error"], msg=f"node {n}")
    return said

  def values(self, **task):
    return {n: words["value"] for n, words in self.work(**task).items()}

  def test_a_peer_was_killed_and_another_comes(self):
    self.start(0, 1, 2, is_apart=True)
    values = self.values(ring=[0, 1, 2])
    self.assertEqual(values, {0: 5.0, 1: 3.0, 2: 6.0})
    self.kill(2)
    self.tell(ring=[0, 1, 2])
    said = [node.pipe.recv() for node in self.nodes.values()]
    self.assertTrue(any(words["error"] for words in said))
    self.start(8190)  # The last that can come, and another kind of node.
    meetings = [[0, 8190], [1, 0], [8190, 1], [0, 1, 8190]]
    said = self.work(ring=[], meetings=meetings)
    counts = {n: words["connections"] for n, words in said.items()}
    # Two of two nodes, and two of three; the old ones had been connected.
    self.assertEqual(counts[8190], 4)
    before = {n: words["value"] for n, words in said.items()}
    values = self.values(ring=[0, 8190, 1])
    for n, previous in ((0, 1), (1, 8190), (8190, 0)):
      self.assertEqual(values[n], before[n] + before[previous])

  def test_nobody_waits_for_one_that_died_before_it_connected(self):
    self.start(0, 1, 2)
    self.kill(2)
    begin_secs = time.monotonic()
    self.tell(ring=[], meetings=[[0, 1, 2]], lost=[2])
    for node in self.nodes.values():
      self.assertIn("cannot connect", node.pipe.recv()["error"])
    self.assertLess(time.monotonic() - begin_secs, 20)  # Gloo waits for 30 s.
    self.assertEqual(self.values(ring=[0, 1], meetings=[[0, 1]])[0], 3.0)

  @parameterized.parameters("127.0.0.1", "::1")
  def test_nobody_waits_for_one_that_was_lost_while_it_connected(self, host):
    self.start(0, 1, 2, host=host)
    for nodes in ([0, 1, 2], [1, 2, 0], [2, 0, 1]):  # Who calls whom differs.
      # Node 0 has all addresses, and waits for one of those who have given up.
      self.tell(ring=[], meetings=[nodes], unheard={1: [2]}, parts=[[0, 1], [2]])
      begin_secs = time.monotonic()
      for node in self.nodes.values():
        self.assertRegex(node.pipe.recv()["error"], "Gloo|cannot connect")
      self.assertLess(time.monotonic() - begin_secs, 20)
    self.assertEqual(self.values(ring=[0, 1])[0], 3.0)

  @parameterized.parameters(True, False)
  def test_a_program_of_both_is_compiled_by_one(self, have_one_folder):
    folders = [self.enter_context(tempfile.TemporaryDirectory())] * 2
    if not have_one_folder:
      folders[1] = self.enter_context(tempfile.TemporaryDirectory())
    for number, path in zip((0, 3), folders, strict=True):
      self.start(number, folder=path)
    said = self.work(ring=[0, 3])
    counts = [words["num_compiled"] for words in said.values()]
    self.assertEqual(sum(counts), 1 if have_one_folder else 2)


class ServiceTest(absltest.TestCase):

  def test_no_other_process_finds_it(self):
    # In a folder with a long name, of which nothing is left over.
    code = (
        "import os, sys\n"
        "from bamboo_jax.runtime.spmd.processes import coordination\n"
        "client = coordination.start_service()\n"
        "client.key_value_set_bytes('there/key', b'value')\n"
        "print(client.key_value_dir_get_bytes('there/'), flush=True)\n"
        "sys.stdin.read(); os._exit(0)"
    )
    root = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
    folder = root / ("long" * 30)
    folder.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=_ROOT,
        env={**os.environ, "TMPDIR": str(folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    self.addCleanup(process.communicate)
    self.addCleanup(process.kill)
    self.assertIn("b'value'", process.stdout.readline())
    self.assertEmpty([*folder.iterdir()])
    (found,) = strangers.find_listeners([process.pid])
    self.assertEqual(found.kind, "unix")
    for path in (found.name, f"/proc/{process.pid}{found.name[10:]}"):
      with self.assertRaises(OSError):
        with socket.socket(socket.AF_UNIX) as caller:
          caller.connect(path)


class HeartbeatsTest(absltest.TestCase):

  def test_jax_never_gives_up_a_worker(self):
    # Agents find who is dead; JAX must not end a process that was stopped.
    given = []

    def record(*args, heartbeat_timeout, **options):
      del args, options
      given.append(heartbeat_timeout)
      return mock.Mock()

    runtime = mock.Mock(
        get_distributed_runtime_service=record, get_distributed_runtime_client=record
    )
    with mock.patch.object(private_jax, "_jax", runtime):
      service = private_jax.start_coordination_service("unix:/there")
      private_jax.connect_coordination(service, "unix:/there")
    self.assertLen(given, 2)
    self.assertGreater(min(given), 7 * 24 * 3600)
