"""Which addresses processes tell each other, and when they give up."""

import contextlib
import socket
import struct
import threading
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized

from bamboo_jax.cluster import blobs as blobs_lib
from bamboo_jax.cluster import identity as identity_lib
from bamboo_jax.runtime import compat
from bamboo_jax.runtime.wire import rendezvous as rendezvous_lib

_ADDRESS = (
    struct.pack("<Q", 2)
    + b"vm"
    + struct.pack("<Q", 136)
    + struct.pack("<HH", socket.AF_INET, 4711)
    + bytes(132)
    + b"pairs"
)
_ADDRESSES = [_ADDRESS + bytes([i]) for i in range(3)]
_KEY = "cpu:gloo/2048,4096,6144"  # Of nodes 0, 1 and 2.


class Process:
  """A node whose service is `values`; its Gloo waits for all addresses."""

  def __init__(self, number):
    identity = identity_lib.issue(b"", run="run", role="worker", name="n")
    self.peers = blobs_lib.Peers("127.0.0.1", identity)
    self.number, self.values = number, {}
    self.lost = set()
    self.is_whole = threading.Event()
    self._rendezvous = rendezvous_lib.Rendezvous(
        number, self.peers, is_lost=lambda node: node in self.lost
    )

  def write(self, key, value):
    self.values[key] = value
    if len(self.values) == len(_ADDRESSES):
      self.is_whole.set()

  @contextlib.contextmanager
  def meet(self, others):
    """Lets it meet `others`, from the moment that it has written its own."""
    self.peers.addresses = {o.number: o.peers.address for o in others}
    with self._rendezvous.meet([0, 1, 2]):
      self.write(f"{_KEY}/{self.number}", _ADDRESSES[self.number])
      yield


class RendezvousTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.nodes = [Process(i) for i in range(3)]
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
        mock.patch.multiple(
            rendezvous_lib.Rendezvous, _carry=run(carry), _look=run(look)
        )
    )
    self.enterContext(
        mock.patch.multiple(
            compat,
            coordination_values=lambda prefix: dict(local.process.values),
            set_coordination_value=lambda *entry: local.process.write(*entry),
        )
    )

  def test_all_learn_of_all(self):
    with contextlib.ExitStack() as stack:
      for node in self.nodes:
        stack.enter_context(node.meet(self.nodes))
      for node in self.nodes:
        self.assertTrue(node.is_whole.wait(30))
        want = {f"{_KEY}/{i}": a for i, a in enumerate(_ADDRESSES)}
        self.assertEqual(node.values, want)
    for node in self.nodes:
      self.assertEqual([*node.peers._blobs], [f"{_KEY}/{node.number}"])

  def test_nobody_waits_for_the_lost(self):
    first, second, _ = self.nodes
    with first.meet([second]), second.meet([first]):
      self.assertFalse(first.is_whole.wait(0.1))
      first.lost = second.lost = {2}
      for node in (first, second):
        self.assertTrue(node.is_whole.wait(30))
        unusable = rendezvous_lib.make_unusable(_ADDRESSES[node.number])
        self.assertEqual(node.values[f"{_KEY}/2"], unusable)

  def test_who_cannot_be_reached_is_tried_again(self):
    first, second, third = self.nodes
    with first.meet([]), second.meet([first, third]), third.meet([first]):
      first.peers.addresses = {n.number: n.peers.address for n in self.nodes}
      self.assertTrue(first.is_whole.wait(30))

  def test_what_is_known_is_not_carried_again(self):
    node, *_ = self.nodes
    with mock.patch.object(node.peers, "offer") as offer:
      for _ in range(2):
        with node.meet([]):
          while not offer.mock_calls:
            threading.Event().wait(0.01)
          threading.Event().wait(0.05)
      node.lost = {1, 2}
      self.assertTrue(node.is_whole.wait(30))
    offer.assert_called_once_with(f"{_KEY}/0", _ADDRESSES[0])


class AddressTest(absltest.TestCase):

  def test_key(self):
    got = rendezvous_lib.parse_key("cpu:gloo/4096,2048/1")
    self.assertEqual(got, ([1, 0], 1))

  def test_only_the_family_differs(self):
    got = rendezvous_lib.make_unusable(_ADDRESS)
    self.assertLen(got, len(_ADDRESS))
    differ = [i for i in range(len(got)) if got[i] != _ADDRESS[i]]
    self.assertEqual(differ, [18])
    (family,) = struct.unpack_from("<H", got, 18)
    self.assertEqual(family, socket.AF_INET6)

  def test_what_is_no_address(self):
    for other in (b"", b"x" * 7, b"x" * 200, bytes(170)):
      with self.assertRaisesRegex(ValueError, "No address of Gloo"):
        rendezvous_lib.make_unusable(other)
