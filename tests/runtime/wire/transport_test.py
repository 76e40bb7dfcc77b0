"""Values arrive once, in order and whole, however connections break."""

from concurrent import futures
import contextlib
import itertools
import os
import random
import socket
import struct
import threading
import time
from unittest import mock

from absl.testing import parameterized
import jax.numpy as jnp
import numpy as np

from bamboo_jax import base
from bamboo_jax.base import logs as base_logs
from bamboo_jax.net import identity as identity_lib
from bamboo_jax.runtime.wire import endpoints, protocol as protocol_lib, transport as transport_lib
from tests import samples

_SECRET = b"0123456789abcdef"
_PATIENCE_SECS = 60.0
KINDS = ("unix", "tls")


def make_endpoint(kind, *, run="r", secret=_SECRET, host="127.0.0.1", silence_secs=1.0):
  if kind == "unix":
    return endpoints.listen_unix()
  identity = identity_lib.issue(secret, run=run, role="worker", name="0")
  return endpoints.listen_tls(host, identity, silence_secs=silence_secs)


def cut_all(transport):
  """Cuts all connections, which are then made again."""
  for peer in [*transport._peers.values()]:
    with peer._lock:
      for wire in (peer._writing, peer._reading):
        if wire is not None:
          wire.cut()


def make_value(number, size):
  return [np.full(size, number, np.float32), np.array(number)]


def send(transport, to, number, size=1):
  transport.send(to, "a", make_value(number, size))


def receive(transport, source):
  """Returns the number of a value, which has come whole."""
  vector, number = transport.receive(source, "a")
  np.testing.assert_array_equal(vector, number)
  return number


def make_transports(test, count, kind="unix", **limits):
  """Returns nodes that are connected, in attempt 1, until a test ends."""
  made = [
      transport_lib.Transport(node, run="r", endpoint=make_endpoint(kind), **limits)
      for node in range(count)
  ]
  for transport in made:
    test.addCleanup(transport.close)
    transport.set_addresses({n: t.address for n, t in enumerate(made)})
    transport.connect(n for n in range(count) if n != made.index(transport))
    transport.begin(1)
  return made


def run_all(tasks, beside=lambda stop: None):
  """Runs tasks in threads, with `beside` until they have ended; raises their errors."""
  stop, pool = threading.Event(), futures.ThreadPoolExecutor(1 + len(tasks))
  other, *running = [pool.submit(task) for task in (lambda: beside(stop), *tasks)]
  try:
    for task in running:
      task.result(_PATIENCE_SECS)
  finally:
    stop.set()
    pool.shutdown(wait=False)
  other.result(_PATIENCE_SECS)


def call(transport):
  """Returns the connection of somebody without a greeting."""
  host, _, port = transport.address.rpartition(":")
  is_unix = host == "unix"
  stranger = socket.socket(socket.AF_UNIX if is_unix else socket.AF_INET)
  stranger.settimeout(20)
  stranger.connect(port if is_unix else (host, int(port)))
  return stranger


class LateArray:
  """An array that a device computes still; records who waits for it."""

  nbytes, shape, dtype = 12, (3,), np.dtype(np.float32)

  def __init__(self):
    self.threads = set()

  def copy_to_host_async(self):
    pass

  def __array__(self, dtype=None, copy=None):
    self.threads.add(threading.get_ident())
    return np.ones(self.shape, dtype or self.dtype)


class TransportTest(parameterized.TestCase):

  _make = make_transports

  def test_sends_do_not_wait_for_arrays(self):
    first, second = self._make(2)
    late = LateArray()
    first.send(1, "late", [late])
    send(first, 1, 2)
    np.testing.assert_array_equal(second.receive(0, "late")[0], np.ones(3))
    self.assertEqual(receive(second, 0), 2)
    self.assertNotIn(threading.get_ident(), late.threads)

  def test_time_in_which_it_was_suspended_is_no_wait(self):
    first, _ = self._make(2)
    seconds = itertools.count()  # The process runs once in a second.
    with mock.patch.object(transport_lib.time, "monotonic", lambda: next(seconds)):
      self.assertFalse(first.wait(1, "a", 20.0))
    self.assertBetween(first.waited_secs, 0.1, 1.0)

  @parameterized.parameters(*KINDS)
  def test_broken_connections_lose_nothing(self, kind):
    nodes, arrived = self._make(3, kind), threading.Semaphore(0)

    def cut(stop):
      rng = random.Random(0)
      while not stop.wait(rng.uniform(0.0, 0.02)):
        cut_all(rng.choice(nodes))
        for _ in range(3):  # However slow the machine is, all go on.
          arrived.acquire(timeout=1.0)

    def run(me):
      rng = random.Random(me)
      others = [n for n in range(3) if n != me]
      for number in range(30):
        for other in others:
          size = rng.choice((1, 1000, 1 << 18))
          nodes[me].send(other, "ab"[number % 2], make_value(number, size))
        for other in others:
          vector, scalar = nodes[me].receive(other, "ab"[number % 2])
          assert scalar == number and (vector == number).all(), number
          arrived.release()

    run_all([lambda me=me: run(me) for me in range(3)], cut)

  def test_attempts(self):
    first, second = self._make(2)
    send(first, 1, 1)
    first.begin(3)
    send(first, 1, 3)
    with self.assertRaisesRegex(base.AttemptOverError, "in attempt 3 already"):
      second.receive(0, "b")
    second.begin(3)
    self.assertEqual(receive(second, 0), 3)

  def test_an_attempt_may_begin_interrupted(self):
    """A view may arrive just before the attempt of the next step begins."""
    first, second = self._make(2)
    first.interrupt("new view", until=9)
    for attempt in (2, 8):
      first.begin(attempt)
      for call in (
          first.check,
          lambda: first.receive(1, "a"),
          lambda: first.receive(5, "a"),  # A peer that it has not met yet.
          lambda: send(first, 1, 0),
      ):
        with self.assertRaisesRegex(base.AttemptOverError, "new view"):
          call()
    for node in (first, second):
      node.begin(9)
    send(second, 0, 0)
    receive(first, 1)
    first.check()

  @parameterized.product(kind=KINDS, size=(1, 300, 1 << 18))
  def test_more_than_may_be_queued(self, kind, size):
    """Each sends all before it receives, as in a sum or a refresh."""
    nodes = self._make(2, kind, queued_bytes=1000)
    most = []

    def run(me):
      for number in range(20):
        most.append(nodes[me]._peers[1 - me].outbox.kept_bytes)
        send(nodes[me], 1 - me, number, size)
      for number in range(20):
        assert receive(nodes[me], 1 - me) == number

    run_all([lambda me=me: run(me) for me in range(2)])
    # The last one comes on top, whatever its size.
    self.assertLessEqual(max(most), 1000 + 4 * size + 8)

  @parameterized.product(
      call=[
          lambda t: t.receive(7, "a"),
          lambda t: t.wait(7, "a", _PATIENCE_SECS),
          lambda t: send(t, 7, 0, 200),
          lambda t: t.retract(),
      ],
      told=[
          (lambda t: t.interrupt("new view"), base.AttemptOverError, "new view"),
          (lambda t: t.begin(2), base.AttemptOverError, "Attempt 1 is"),
          (lambda t: t.remove([7], "it died"), base.PeerRemovedError, "(node |n)7 .*it died"),
      ],
  )
  def test_whoever_waits_is_told(self, call, told):
    act, error, message = told
    (first,) = self._make(1, queued_bytes=1000)
    first.set_addresses({7: "nowhere"})
    for _ in range(2):  # Nobody is there, so nothing is received.
      send(first, 7, 0, 200)
    self.assertEqual(first.open_waits(), [])

    def tell(_):
      self._wait(lambda: first.open_waits() == [7])
      act(first)

    with self.assertRaisesRegex(error, message):
      run_all([lambda: call(first)], tell)
    self.assertEqual(first.open_waits(), [])
    self.assertNotEqual(first.waited_secs, 0.0)

  def test_a_look_is_no_wait(self):
    first, _ = self._make(2)
    waits, check = [], first._check
    spy = lambda node: (waits.append(first.open_waits()), check(node))[1]
    with mock.patch.object(first, "_check", spy):
      self.assertFalse(first.wait(1, "a", 0.0))
    self.assertEqual(waits, [[]])

  @parameterized.parameters(*KINDS)
  def test_a_value_above_4_gib(self, kind):
    """Takes 9 GiB and half a minute."""
    if not samples.is_all():
      self.skipTest("only with --all")
    size = (4 << 30) + (1 << 20)  # Above the default limit, and above 32 bits.
    marks = [0, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, size - 1]
    value = np.zeros(size, np.uint8)
    value[marks] = 1
    first, second = self._make(2, kind)
    first.send(1, "big", [value])
    first.send(1, "small", [np.array(7)])  # Waits until the first is there.
    self.assertGreater(first.waited_secs, 0.0)
    (got,) = second.receive(0, "big")
    self.assertEqual((got.nbytes, np.flatnonzero(got).tolist()), (size, marks))
    self.assertEqual(second.receive(0, "small"), [7])

  @parameterized.parameters(*KINDS)
  def test_a_retraction_is_known_before_later_values(self, kind):
    first, *others = self._make(3, kind)
    for node in (first, *others):
      self.assertFalse(node.take_retracted())
    first.retract()
    for node in (first, *others):
      node.remove([0], "it died")
      self.assertTrue(node.take_retracted())
      self.assertFalse(node.take_retracted())

  def test_a_lost_array_is_an_error(self):
    first, _ = self._make(2)
    array = jnp.ones(3)
    array.delete()
    with self.assertRaisesRegex(RuntimeError, "deleted"):
      first.send(1, "a", [array])
      first.receive(1, "never")

  @parameterized.parameters(*KINDS)
  def test_what_a_lost_connection_took_is_written_again(self, kind):
    first, second = self._make(2, kind)
    send(first, 1, 1)
    receive(second, 0)
    wire = first._peers[1]._writing
    wire.write = lambda buffers: None  # All is lost without a sign.
    send(first, 1, 2)
    with second._peers[0]._lock:
      second._peers[0]._reading.cut()  # Nothing more is sent: it is watched.
    self.assertEqual(receive(second, 0), 2)
    self.assertIsNot(first._peers[1]._writing, wire)

  def test_a_value_of_an_attempt_that_is_over_may_be_donated(self):
    first, second = self._make(2)
    with first.lock:
      first._peers[1].address = None  # So it is not written yet.
    array = jnp.ones(1 << 20)
    first.send(1, "a", [array])
    first.begin(2)
    array.delete()
    first.set_addresses({1: second.address})
    send(first, 1, 2)
    second.begin(2)
    self.assertEqual(receive(second, 0), 2)

  def test_the_kernel_finds_silence(self):
    endpoint = make_endpoint("tls", silence_secs=1.5)
    node = transport_lib.Transport(0, run="r", endpoint=endpoint)
    self.addCleanup(node.close)
    wires = [endpoint.dial(node.address, 5.0)]
    self.addCleanup(wires[0].close)
    greeting = protocol_lib.Frame(0, 0, meta="1>0 r")
    wires[0].write([protocol_lib.encode(greeting)])
    self._wait(lambda: node._peers and node._peers[1]._reading)
    wanted = dict(TCP_USER_TIMEOUT=1500, TCP_KEEPIDLE=1, TCP_KEEPINTVL=1, TCP_NODELAY=1)
    for wire in (*wires, node._peers[1]._reading):
      for name, value in wanted.items():
        found = wire._socket.getsockopt(socket.IPPROTO_TCP, getattr(socket, name))
        self.assertEqual(found, value, name)
      self.assertTrue(wire._socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))

  @parameterized.named_parameters(
      ("another_run", dict(run="s"), "spiffe://r/worker"),
      ("another_secret", dict(secret=b"x" * 16), "certificate"),
  )
  def test_rejects_strangers(self, given, message):
    (node,) = self._make(1, "tls")
    stranger = make_endpoint("tls", **given)
    self.addCleanup(stranger.close)
    with self.assertLogs(level="WARNING") as logs:
      with self.assertRaises(OSError):  # Errors of TLS are some.
        stranger.dial(node.address, 5.0).read_into(memoryview(bytearray(1)))
      self._wait(lambda: logs.output)
    self.assertRegex("".join(logs.output), message)
    self.assertIn(f" at {node.address} rejects 127", logs.output[0])

  def test_strangers_fill_no_log(self):
    (node,) = self._make(1, "tls")
    with self.assertLogs(level="WARNING") as logs:
      for _ in range(100):
        with call(node) as stranger, contextlib.suppress(ConnectionError):
          stranger.shutdown(socket.SHUT_WR)
          while stranger.recv(100):
            pass
    self.assertLess(len(logs.output), 20)

  @parameterized.named_parameters(
      ("no_node", protocol_lib.encode(protocol_lib.Frame(0, 0, meta="me")), "invalid literal"),
      ("run", protocol_lib.encode(protocol_lib.Frame(0, 0, meta="1>0 s")), "greeting '1>0 s'"),
  )  # fmt: skip
  def test_rejects_other_protocols(self, data, message):
    (node,) = self._make(1)
    with call(node) as stranger, self.assertLogs(level="WARNING") as logs:
      stranger.sendall(data)
      with contextlib.suppress(ConnectionResetError):
        self.assertEqual(stranger.recv(1), b"")
      self._wait(lambda: logs.output)
    self.assertRegex("".join(logs.output), message)

  @parameterized.parameters(*KINDS)
  def test_idle_strangers_keep_nobody_out(self, kind):
    first, second = self._make(2, kind)
    for _ in range(150):
      self.addCleanup(call(first).close)
    cut_all(second)
    send(second, 0, 1)
    self.assertEqual(receive(first, 1), 1)

  def test_unreachable_peer_is_named(self):
    (first,) = self._make(1)
    with self.assertLogs(level="WARNING") as logs:
      self.enterContext(mock.patch.dict(base_logs._names, {5: "n7"}, clear=True))
      first.set_addresses({5: "unix:/nowhere/socket"})
      first.connect([5])
      self._wait(lambda: logs.output)
    self.assertRegex("".join(logs.output), "node 0 cannot reach n7 at unix:/nowhere")

  def test_says_what_to_do(self):
    for error, wanted in (
        (TimeoutError("timed out"), "a firewall drops packets silently: nodes"),
        (ConnectionRefusedError(), "no process listens there"),
        (OSError("no route"), "^no route$"),
    ):
      self.assertRegex(endpoints.explain(error), wanted)
    with self.assertRaisesRegex(OSError, "cannot listen at 192.0.2.1: .*--host"):
      make_endpoint("tls", host="192.0.2.1")

  def test_nothing_is_left_of_a_socket(self):
    first = endpoints.listen_unix()
    self.addCleanup(first.close)
    place = os.readlink(first.address.removeprefix("unix:"))
    self.assertEndsWith(place, "(deleted)")
    self.assertFalse(os.path.exists(os.path.dirname(place)))
    first.dial(first.address, 5.0).close()

  def test_ends_leave_no_thread(self):
    before = threading.active_count()
    for _ in range(3):
      first, second = self._make(2)
      send(first, 1, 1)
      receive(second, 0)
      first.close()
      second.close()
    self._wait(lambda: threading.active_count() <= before)

  def _wait(self, is_true):
    end = time.monotonic() + _PATIENCE_SECS
    while not is_true():
      self.assertLess(time.monotonic(), end)
      time.sleep(1e-2)


class ListenTest(parameterized.TestCase):

  @parameterized.parameters(
      ("127.0.0.1", "unix:"),
      ("127.0.0.2", "unix:"),
      ("localhost", "unix:"),
      ("::1", "unix:"),
      ("0.0.0.0", "0.0.0.0:"),
  )
  def test_address(self, host, prefix):
    endpoint = endpoints.listen(host, None, silence_secs=3.0)  # Used by connections only.
    self.addCleanup(endpoint.close)
    self.assertStartsWith(endpoint.address, prefix)

  @parameterized.parameters((0, None), (1, "is not that of this run"))
  def test_other_users(self, offset, problem):
    endpoint = endpoints.listen_unix()
    self.addCleanup(endpoint.close)
    connection = mock.create_autospec(socket.socket, instance=True)
    found = struct.pack("3i", os.getpid(), os.getuid() + offset, os.getgid())
    connection.getsockopt.return_value = found
    context = contextlib.nullcontext()
    if problem:
      context = self.assertRaisesRegex(ConnectionError, problem)
    with context:
      endpoint.secure(connection, is_server=True)
