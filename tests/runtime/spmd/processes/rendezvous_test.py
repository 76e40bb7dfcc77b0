"""Which addresses processes tell each other, and when they give up."""

from concurrent import futures
import socket
import struct
import threading
from unittest import mock

from absl.testing import parameterized

from bamboo_jax.runtime.spmd.processes import private_jax, rendezvous as rendezvous_lib
from bamboo_jax.runtime.wire import endpoints, transport as transport_lib


def make_address(*numbers, port=4711, host="127.0.0.1"):
  family = socket.AF_INET6 if ":" in host else socket.AF_INET
  place = struct.pack("<H", family) + struct.pack(">H", port)
  place += bytes(4) * (family == socket.AF_INET6)
  place += socket.inet_pton(family, host)
  place += bytes(128 - len(place))
  name = struct.pack("<Q", 2) + b"vm" + struct.pack("<Q", len(place))
  return name + place + struct.pack(f"<{len(numbers)}q", *numbers)


_ADDRESSES = [make_address(i, 10 + i) for i in range(3)]
_GROUP = (0, 1, 2)
_KEY = "cpu:gloo/2048,4096,6144"  # Of nodes 0, 1 and 2.


class Process:
  """A node whose service is `values`; its Gloo waits for all addresses."""

  def __init__(self, number):
    self.exchange = transport_lib.Transport(number, run="r", endpoint=endpoints.UnixEndpoint())
    self.exchange.begin(1)
    self.number, self.values = number, {}
    self.address = _ADDRESSES[number]
    self.lost, self.cut = set(), mock.Mock()
    self.is_whole = threading.Event()
    self._rendezvous = rendezvous_lib.Rendezvous(
        number, self.exchange, is_lost=lambda node: node in self.lost
    )

  def know(self, others):
    self.exchange.set_addresses({o.number: o.exchange.address for o in others})

  def lose(self, number):
    self.lost = {number}
    self.exchange.interrupt(f"node {number} is missing")

  def write(self, key, value):
    self.values[key] = value
    if len(self.values) == len(_ADDRESSES):
      self.is_whole.set()

  def meet(self):
    """Meets all others, as Gloo does."""
    with self._rendezvous.meet(_GROUP, self.cut):
      self.write(f"{_KEY}/{self.number}", self.address)
      assert self.is_whole.wait(30)

  def come(self, over):
    """Comes to meet all others, but gives nobody an address."""
    with self._rendezvous.meet(_GROUP, self.cut):
      over.wait(30)


class RendezvousTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.nodes = [Process(i) for i in range(3)]
    for node in self.nodes:
      self.addCleanup(node.exchange.close)
      node.know(self.nodes)
    self.threads = self.enterContext(futures.ThreadPoolExecutor(3))
    # Each thread of a process is to see that one's service.
    carry = rendezvous_lib.Rendezvous._carry
    look = rendezvous_lib.Rendezvous._look
    local = threading.local()

    def run(method):
      def in_process(rendezvous, *args):
        local.process = self.nodes[rendezvous._number]
        method(rendezvous, *args)

      return in_process

    self.enterContext(
        mock.patch.multiple(rendezvous_lib.Rendezvous, _carry=run(carry), _look=run(look))
    )
    self.enterContext(
        mock.patch.multiple(
            private_jax,
            coordination_values=lambda prefix: dict(local.process.values),
            set_coordination_value=lambda *entry: local.process.write(*entry),
        )
    )

  def test_all_learn_of_all(self):
    for _ in range(2):  # The second time all is known.
      for met in [self.threads.submit(node.meet) for node in self.nodes]:
        met.result(30)
    for node in self.nodes:
      want = {f"{_KEY}/{i}": a for i, a in enumerate(_ADDRESSES)}
      self.assertEqual(node.values, want)
      node.cut.assert_not_called()

  def test_nobody_enters_before_all_are_there(self):
    first, second, third = self.nodes
    early = [self.threads.submit(node.meet) for node in (first, second)]
    self.assertEqual(futures.wait(early, timeout=0.3).done, set())
    self.assertEqual([first.values, second.values], [{}, {}])
    for met in [*early, self.threads.submit(third.meet)]:
      met.result(30)

  def test_nobody_waits_for_one_that_was_lost_before_it_came(self):
    first, second, _ = self.nodes
    early = [self.threads.submit(node.meet) for node in (first, second)]
    for node in (first, second):
      node.lose(2)
    for met in early:
      with self.assertRaisesRegex(ConnectionError, "node 2 is missing"):
        met.result(30)

  def test_nobody_waits_for_the_address_of_the_lost(self):
    first, second, third = self.nodes
    over = threading.Event()
    third_comes = self.threads.submit(third.come, over)
    met = [self.threads.submit(node.meet) for node in (first, second)]
    self.assertFalse(first.is_whole.wait(0.1))
    for node in (first, second):
      node.lose(2)
    for node, meeting in zip((first, second), met, strict=True):
      meeting.result(30)
      unusable = rendezvous_lib.make_unusable(_ADDRESSES[node.number])
      self.assertEqual(node.values[f"{_KEY}/2"], unusable)
    over.set()
    third_comes.result(30)

  def test_nobody_waits_for_a_call_of_the_lost(self):
    calls = []
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
      first = self.nodes[0]
      first.address = make_address(7, -9, port=server.getsockname()[1])

      def wait_for_call():
        with first._rendezvous.meet(_GROUP, first.cut):
          first.write(f"{_KEY}/0", first.address)
          self.assertTrue(first.is_whole.wait(30))
          first.lost = {2}  # It has told its address.
          for _ in range(2):
            caller, _ = server.accept()
            with caller, caller.makefile("rb") as words:
              calls.append(struct.unpack("<q", words.read()))
          while first.cut.call_count < 2:  # Others may be reached any time.
            threading.Event().wait(0.01)

      server.settimeout(30)
      others = [self.threads.submit(node.meet) for node in self.nodes[1:]]
      wait_for_call()
      for met in others:
        met.result(30)
    over.set()
    self.assertEqual(calls, [(7,), (-9,)])

  def test_what_is_known_is_not_carried_again(self):
    for _ in range(2):
      with mock.patch.object(
          self.nodes[0].exchange, "send", wraps=self.nodes[0].exchange.send
      ) as send:
        for met in [self.threads.submit(node.meet) for node in self.nodes]:
          met.result(30)
    send.assert_not_called()

  def test_nothing_is_kept_for_a_group_that_has_lost_a_node(self):
    for met in [self.threads.submit(node.meet) for node in self.nodes]:
      met.result(30)
    first = self.nodes[0]._rendezvous
    self.assertEqual(first._met, {_GROUP})
    self.nodes[0].lost = {2}
    with first.meet((0,), self.nodes[0].cut):
      pass
    self.assertEqual(first._met, {(0,)})

  def test_a_look_that_is_late_takes_nothing_of_the_next_meeting(self):
    first, over = self.nodes[0], threading.Event()

    def look_late(prefix):
      del prefix
      over.set()  # Meanwhile that meeting is over, and the next one begins.
      return {f"{_KEY}/0": first.address}

    with (
        mock.patch.object(private_jax, "coordination_values", look_late),
        mock.patch.object(first._rendezvous, "_carry") as carry,
    ):
      first._rendezvous._look(over, first.cut)
    carry.assert_not_called()
    self.assertEqual(first._rendezvous._seen, set())


class AddressTest(parameterized.TestCase):

  def test_key(self):
    got = rendezvous_lib.parse_key("cpu:gloo/4096,2048/1")
    self.assertEqual(got, ([1, 0], 1))

  @parameterized.parameters("127.0.0.1", "10.0.0.7", "::1", "fd00::7:1")
  def test_place_and_numbers(self, host):
    got = rendezvous_lib.parse_address(make_address(3, -4, port=512, host=host))
    self.assertEqual(got, ((host, 512), [3, -4]))

  @parameterized.parameters(("127.0.0.1", socket.AF_INET6), ("::1", socket.AF_INET))
  def test_only_the_family_differs(self, host, other):
    address = make_address(0, 10, host=host)
    got = rendezvous_lib.make_unusable(address)
    self.assertLen(got, len(address))
    differ = [i for i in range(len(got)) if got[i] != address[i]]
    self.assertEqual(differ, [18])
    (family,) = struct.unpack_from("<H", got, 18)
    self.assertEqual(family, other)

  def test_what_is_no_address(self):
    odd = _ADDRESSES[0] + b"x"
    for other in (b"", b"x" * 7, b"x" * 200, bytes(170), odd):
      with self.assertRaisesRegex(ValueError, "No address of Gloo"):
        rendezvous_lib.make_unusable(other)
