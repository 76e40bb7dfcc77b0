"""Which addresses will never come, and what is written in their place."""

import socket
import struct
import threading

from absl.testing import absltest
from absl.testing import parameterized

from bamboo_jax.runtime.wire import coordination
from bamboo_jax.runtime.wire import unblock
from tests import members

_ADDRESS = (
    struct.pack("<Q", 2)
    + b"vm"
    + struct.pack("<Q", 136)
    + struct.pack("<HH", socket.AF_INET, 4711)
    + bytes(132)
    + b"pairs"
)


class FindAwaitedTest(parameterized.TestCase):

  @parameterized.parameters(
      ((), (2048,), ()),
      (("cpu:gloo/2048,4096/1",), (2048,), ("cpu:gloo/2048,4096/0",)),
      (("cpu:gloo/2048,4096/1",), (4096,), ()),
      (("cpu:gloo/2048,4096/1",), (6144,), ()),
      (("cpu:gloo/2048,4096/0", "cpu:gloo/2048,4096/1"), (2048, 4096), ()),
      (
          ("cpu:gloo/8,6,4/0", "cpu:gloo/8,4/1"),
          (4, 6),
          ("cpu:gloo/8,6,4/1", "cpu:gloo/8,6,4/2"),
      ),
      (("cpu:gloo/other/0",), (2048,), ()),
  )
  def test_keys(self, keys, dead, want):
    self.assertCountEqual(unblock.find_awaited(keys, dead), want)


class Client:
  """View 2 interrupts view 1; then comes view 3, which has lost another."""

  def __init__(self):
    self.adopted = members.view(1, 0, 1, 2)
    self.newest = members.view(2, 0, 2)

  def wait_interrupt(self, timeout_secs):
    return members.view(2, 0, 2)


class BreakWaitsTest(absltest.TestCase):

  def test_who_is_lost_in_a_later_view_is_given_up_too(self):
    given_up, is_over = [], threading.Event()
    client = Client()

    def give_up(dead):
      given_up.append(tuple(dead))
      client.newest = members.view(3, 0)
      if len(given_up) == 2:
        is_over.set()
        threading.Event().wait()  # It waits from now on.

    self.addCleanup(setattr, unblock, "give_up", unblock.give_up)
    unblock.give_up = give_up
    threading.Thread(
        target=unblock.break_waits, args=(client,), daemon=True
    ).start()
    self.assertTrue(is_over.wait(10))
    device_of = coordination.device_of
    self.assertEqual(given_up, [(device_of(1),), (device_of(1), device_of(2))])


class MakeUnusableTest(absltest.TestCase):

  def test_only_the_family_differs(self):
    got = unblock.make_unusable(_ADDRESS)
    self.assertLen(got, len(_ADDRESS))
    differ = [i for i in range(len(got)) if got[i] != _ADDRESS[i]]
    self.assertEqual(differ, [18])
    (family,) = struct.unpack_from("<H", got, 18)
    self.assertEqual(family, socket.AF_INET6)

  def test_what_it_does_not_know_is_left_alone(self):
    for other in (b"", b"x" * 7, b"x" * 200, bytes(170)):
      self.assertIsNone(unblock.make_unusable(other))
