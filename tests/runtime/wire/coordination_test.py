"""Real processes that move from one coordination service to the next.

Takes most of ten seconds, as every node is a process that imports JAX.
"""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized

from bamboo_jax.runtime import compat
from bamboo_jax.runtime.wire import coordination

_ROOT = pathlib.Path(__file__).resolve().parents[3]


def free_port():
  with socket.socket() as sock:
    sock.bind(("127.0.0.1", 0))
    return sock.getsockname()[1]


class ReconnectTest(parameterized.TestCase):

  def start(self, number, *programs):
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.coordination_worker",
            str(number),
            *programs,
        ],
        cwd=_ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    self.addCleanup(process.communicate)
    self.addCleanup(process.kill)
    return process

  def tell(self, nodes, **task):
    for process in nodes.values():
      process.stdin.write(json.dumps(task) + "\n")
      process.stdin.flush()

  def begin_era(self, nodes, numbers):
    """Starts a service and tells `nodes` to work with it."""
    port = free_port()
    service = coordination.Service(port, numbers=numbers)
    address = f"127.0.0.1:{port}"
    self.tell(nodes, address=address, numbers=numbers, ring=sorted(nodes))
    return service

  def hear(self, process):
    for line in process.stdout:  # Gloo prints there, too.
      if line.startswith("said "):
        return json.loads(line.removeprefix("said "))
    raise AssertionError(f"a node ended with {process.wait()}")

  def values(self, nodes):
    said = {n: self.hear(process) for n, process in nodes.items()}
    for n, words in said.items():
      self.assertIsNone(words["error"], msg=f"node {n}")
    return {n: words["value"] for n, words in said.items()}

  def test_a_peer_was_killed_and_another_comes(self):
    nodes = {n: self.start(n, "--apart") for n in (0, 1, 2)}
    service = self.begin_era(nodes, [0, 1, 2])
    self.assertEqual(self.values(nodes), {0: 5.0, 1: 3.0, 2: 6.0})
    nodes[2].send_signal(signal.SIGKILL)
    nodes.pop(2).wait()
    self.tell(nodes, ring=[0, 1, 2])
    self.assertTrue(
        any([self.hear(process)["error"] for process in nodes.values()])
    )
    nodes[5] = self.start(5)  # Another kind of node.
    new_service = self.begin_era(nodes, [1, 5, 0])
    self.assertEqual(self.values(nodes), {0: 37.0, 1: 8.0, 5: 35.0})
    del service  # Nobody uses it any more, so nobody dies of it.
    meetings = [[0, 5], [1, 0], [5, 1], [0, 1, 5]]
    self.tell(nodes, ring=[0, 5, 1], meetings=meetings)
    said = {n: self.hear(process) for n, process in nodes.items()}
    self.assertEqual(
        {n: words["value"] for n, words in said.items()},
        {0: 45.0, 1: 43.0, 5: 72.0},
    )
    self.assertEqual([words["num_new"] for words in said.values()], [0, 0, 0])
    counts = [words["connections"] for words in said.values()]
    self.assertEqual(counts, [4, 4, 4])  # Two of two nodes, and two of three.
    del new_service

  def test_ten_times_in_one_process(self):
    nodes = {n: self.start(n) for n in (0, 3)}
    service = self.begin_era(nodes, [0, 1, 2, 3])
    first = {n: self.hear(process) for n, process in nodes.items()}
    self.assertEqual(first[0]["value"], first[3]["value"])
    for repetition in range(10):
      order = [3, 0] if repetition % 2 else [0, 7, 3]
      service = self.begin_era(nodes, order)
      last = {n: self.hear(process) for n, process in nodes.items()}
    for n in nodes:
      self.assertEqual(last[n]["value"], 9.0 * 2**10)
      self.assertIsNone(last[n]["error"])
      self.assertLessEqual(last[n]["sockets"], first[n]["sockets"])
      self.assertLessEqual(last[n]["threads"], first[n]["threads"])
      self.assertLess(last[n]["resident_mib"], first[n]["resident_mib"] + 20)
    del service

  @parameterized.parameters(True, False)
  def test_a_program_of_both_is_compiled_by_one(self, have_one_folder):
    folder = self.enter_context(tempfile.TemporaryDirectory())
    other = self.enter_context(tempfile.TemporaryDirectory())
    folders = {0: folder, 3: folder if have_one_folder else other}
    nodes = {n: self.start(n, path) for n, path in folders.items()}
    service = self.begin_era(nodes, [0, 3])
    self.assertEqual(self.values(nodes), {0: 9.0, 3: 9.0})
    self.tell(nodes, ring=[0, 3])
    counts = [self.hear(process)["num_compiled"] for process in nodes.values()]
    self.assertEqual(sum(counts), 1)
    for path in set(folders.values()):
      self.assertLen(list(pathlib.Path(path).glob("*.xla")), 1)
    del service


class ConnectTest(absltest.TestCase):

  def test_a_service_that_does_not_answer_ends_no_process(self):
    port = free_port()
    service = coordination.Service(port, numbers=range(2))
    code = """
      import sys
      from bamboo_jax.runtime.wire import coordination

      coordination._CONNECT_SECS = 1
      for address in sys.argv[1:]:
        try:
          coordination.connect(address, slot=1, num_slots=3, number=0)
          print(len(coordination.devices_by_slot()))
        except ConnectionError as error:
          print(error)
          coordination.disconnect()
    """
    addresses = [f"127.0.0.1:{p}" for p in (free_port(), port)]
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *addresses],
        cwd=_ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=True,
    )
    self.assertIn(f"{addresses[0]} does not answer", done.stdout)
    self.assertEqual(done.stdout.splitlines()[-1], "3")
    del service


class AnswersTest(absltest.TestCase):

  def test_whether_a_service_answers(self):
    port = free_port()
    address = f"127.0.0.1:{port}"
    self.assertFalse(coordination.answers(address))
    service = coordination.Service(port, numbers=range(2))
    self.assertTrue(coordination.answers(address))
    del service

  def test_a_proxy_whose_service_is_dead(self):
    """It takes the connection, and closes it."""
    with socket.create_server(("127.0.0.1", 0)) as proxy:
      accept = lambda: proxy.accept()[0].close()
      thread = threading.Thread(target=accept)
      thread.start()
      port = proxy.getsockname()[1]
      self.assertFalse(coordination.answers(f"127.0.0.1:{port}"))
      thread.join()


class HeartbeatsTest(absltest.TestCase):

  def test_jax_never_gives_up_a_worker(self):
    # Agents find who is dead; the service must not end the others for it.
    given = []

    def record(*args, heartbeat_timeout, **options):
      del args, options
      given.append(heartbeat_timeout)

    runtime = mock.Mock(
        get_distributed_runtime_service=record,
        get_distributed_runtime_client=record,
    )
    with mock.patch.object(compat, "_jax", runtime):
      compat.make_coordination_service("127.0.0.1:1", 1)
      compat.make_coordination_client("127.0.0.1:1", 1)
    self.assertLen(given, 2)
    self.assertGreater(min(given), 7 * 24 * 3600)
