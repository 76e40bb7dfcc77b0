"""Workers agree on a ring of children, whatever happens to a child."""

from concurrent import futures
from multiprocessing import connection
import os
import socket
import threading

from absl.testing import parameterized
import numpy as np

from bamboo_jax import base
from bamboo_jax.runtime.spmd import passes, processes, program
from bamboo_jax.runtime.wire import endpoints, transport as transport_lib

_NODES = (1, 4, 7)
_LEFT = program.Left(passes.Arrays((), (), (), sums=np.array(5)), ())


class Child(threading.Thread):
  """Answers as `processes.live`, and fails when it is told `fails_at`."""

  def __init__(self, end, fails_at, memory):
    super().__init__(daemon=True)
    self._pipe, self._fails_at = connection.Connection(end.detach()), fails_at
    self._memory = memory
    self.start()

  def run(self):
    self._pipe.send(os.getpid())
    try:
      while True:
        number, name, args = self._pipe.recv()
        if name == "read":
          name = "sums" if args[1] else "left"
          self._memory.write(_LEFT.carry.sums if args[1] else _LEFT)
        if name == self._fails_at:
          self._pipe.close()
          return
        if name == "join" and args[1] == 0:
          host, port = args[0].split(":")
          with socket.create_server((host, int(port))) as coordinator:
            coordinator.accept()
        if f"{name}?" == self._fails_at:
          continue  # It waits for another child.
        self._pipe.send((number, "out of memory" if f"{name}!" == self._fails_at else ""))
    except (EOFError, OSError):
      return


class Worker:
  """A worker whose n-th child fails at the n-th message of `fails`."""

  def __init__(self, number, fails=()):
    self.exchange = transport_lib.Transport(number, run="r", endpoint=endpoints.listen_unix())
    self._fails, self.num_forks = [*fails], 0
    self.rings = set()  # Seen by others, during its passes.
    self.memory = processes.SharedMemory()
    self.ring = processes.ProcessRing(
        number, self.exchange, fork=self._fork, memory=self.memory, host="127.0.0.1"
    )
    self.make_segments(9)

  def _fork(self):
    ours, theirs = socket.socketpair()
    Child(theirs, self._fails.pop(0) if self._fails else "", self.memory)
    self.num_forks += 1
    return ours

  def run(self, nodes=_NODES):
    self.ring.run(nodes, self._pass, note_progress=self.exchange.check)

  def make_segments(self, num_segments):
    self.ring.segments = []
    self.segments = processes.ChildSegments(self.ring, (0, 0, 5), (0, {0: [0] * num_segments}))

  def _pass(self):
    self.segments.start()
    self.segments.finish(is_lost=False)
    self.rings.add(self.ring.running)


class ProcessRingTest(parameterized.TestCase):

  def make(self, **fails):
    self.workers = {n: Worker(n, fails.get(f"node{n}", ())) for n in _NODES}
    addresses = {n: w.exchange.address for n, w in self.workers.items()}
    self.begin(1)
    for worker in self.workers.values():
      self.addCleanup(worker.exchange.close)
      worker.exchange.set_addresses(addresses)
    self.pool = futures.ThreadPoolExecutor(len(_NODES))
    self.addCleanup(self.pool.shutdown)
    for worker in self.workers.values():  # Before, so that nobody waits for ever.
      self.addCleanup(worker.exchange.interrupt, "the test is over")
    return self.workers

  def begin(self, attempt):
    for worker in self.workers.values():
      worker.exchange.begin(attempt)

  def start(self, nodes=_NODES):
    return [self.pool.submit(self.workers[n].run, nodes) for n in nodes]

  def run_all(self, nodes=_NODES):
    for future in self.start(nodes):
      future.result(timeout=60)

  def test_children_stay_for_later_steps(self):
    workers = self.make()
    for _ in range(3):
      self.run_all()
    self.assertEqual([w.num_forks for w in workers.values()], [1] * 3)
    self.assertEqual([w.rings for w in workers.values()], [{_NODES}] * 3)
    # A worker that hangs between two programs waits for nobody.
    self.assertEqual([w.ring.running for w in workers.values()], [()] * 3)
    self.assertEqual([w.ring.num_starts for w in workers.values()], [1] * 3)

  @parameterized.parameters("join", "load", "load!", "connect", "connect!", "run", "run!")
  def test_a_child_that_fails(self, message):
    """Once, and then the first child of the ring at the same message."""
    for fails in ({"node4": [message]}, {"node4": [message], "node1": ["", message]}):
      workers = self.make(**fails)
      self.run_all()
      self.assertEqual([w.num_forks for w in workers.values()], [1 + len(fails)] * 3)

  @parameterized.parameters("join", "load", "connect", "run")
  def test_a_child_that_fails_while_others_wait_for_it(self, message):
    workers = self.make(node1=[f"{message}?"], node4=[message], node7=[f"{message}?"])
    self.run_all()
    self.assertEqual([w.num_forks for w in workers.values()], [2] * 3)

  def test_an_error_that_stays(self):
    self.make(node1=["run?"] * 9, node7=["run!"] * 9)
    for future in self.start():
      with self.assertRaisesRegex(processes.ChildError, "failed 4 times: node 7: out of memory"):
        future.result(timeout=60)

  def test_a_smaller_ring(self):
    workers = self.make()
    self.run_all()
    waiting = [self.pool.submit(workers[n].run) for n in _NODES[1:]]
    for node in _NODES[1:]:
      workers[node].exchange.interrupt("node 1 is lost")
    for future in waiting:
      with self.assertRaises(base.AttemptOverError):
        future.result(timeout=60)
    self.begin(2)
    self.run_all(_NODES[1:])
    for node in _NODES[1:]:
      self.assertEqual(workers[node].rings, {_NODES, _NODES[1:]})
      self.assertEqual(workers[node].ring.running, ())

  def test_what_a_child_has_left(self):
    workers = self.make(node4=["", "run!"])
    self.assertIsNone(workers[4].segments.read(0))  # It has run nothing.
    self.run_all()
    for worker in workers.values():
      self.assertEqual(worker.segments.read(0), _LEFT)
      self.assertEqual(worker.segments.sums(0), 5)
      worker.exchange.interrupt("node 9 is lost")
      with self.assertRaises(base.AttemptOverError):
        worker.run()
      self.assertEqual(worker.segments.read(0), _LEFT)
    self.begin(2)
    self.run_all()  # Children that were interrupted are replaced.
    self.assertEqual([w.num_forks for w in workers.values()], [3] * 3)

  def test_sums_without_what_is_left(self):
    """Sums of all segments are not lost with a child; the rest of the step must not add to them."""
    workers = self.make(node4=["left!"])
    for worker in workers.values():
      worker.make_segments(1)
    self.run_all()
    for node, left in ((1, _LEFT), (4, None)):
      segments = workers[node].segments
      self.assertEqual(segments.read(0), left)
      self.assertEqual((segments.sums(0), segments.num_summed), (5, 1))
