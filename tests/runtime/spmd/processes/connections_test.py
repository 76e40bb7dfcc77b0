"""Sockets of the dead are shut down; those of the living work on."""

import contextlib
import ctypes
import socket
import struct
import time

from absl.testing import parameterized

from bamboo_jax.cluster import door
from bamboo_jax.runtime.spmd.processes import (
    black_holes,
    connections as connections_lib,
    transfer_log,
)
from bamboo_jax.schedule import channel as channel_lib


def is_open(pair):
  """Whether what is written at one end arrives at the other."""
  try:
    pair[0].sendall(b"x")
    return pair[1].recv(1) == b"x"
  except OSError:
    return False


_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27


def drop_large_packets(receiver):
  """Has the kernel drop what is too large, as a link on the way would."""
  program = (
      (0x80, 0, 0, 0),  # The length of a packet.
      (0x25, 0, 1, 1400),  # If it is more than that:
      (0x06, 0, 0, 0),  # drop it,
      (0x06, 0, 0, 0xFFFFFFFF),  # else take all of it.
  )
  code = b"".join(struct.pack("HBBI", *line) for line in program)
  place = ctypes.create_string_buffer(code)
  given = struct.pack("HxxxxxxQ", len(program), ctypes.addressof(place))
  receiver.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, given)


class ConnectionsTest(parameterized.TestCase):

  def open(self, *, timeout_secs=30):
    """Returns two ends; gloo lets the kernel time what it reads."""
    pair = socket.socketpair()
    for end in pair:
      self.addCleanup(end.close)
      timeout = struct.pack("ll", timeout_secs, 0)
      end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
    return pair

  def test_cuts_those_of_the_dead_only(self):
    connections = connections_lib.Connections()
    before = self.open()
    with connections.record((0, 1)):
      alive = self.open()
    with connections.record((0, 2)):
      dead = self.open()
    after = self.open()
    self.assertEqual(connections.cut({0, 1}), 2)
    self.assertEqual(
        [is_open(pair) for pair in (before, alive, dead, after)], [True, True, False, True]
    )
    self.assertEqual(connections.cut({0, 1}), 0)

  @parameterized.parameters(
      (5, 1448, 1, True),
      (4, 1448, 1, False),  # Some may get lost.
      (9, 1200, 1, False),  # It is not the size.
      (9, 1448, 0, False),  # All has arrived.
  )
  def test_sends_in_vain(self, timeouts, segment_bytes, num_sent, is_stuck):
    numbers = (200_000, 40_000, segment_bytes, 536, num_sent)
    info = struct.pack("8B5I", 1, 0, timeouts, 0, timeouts, 7, 0, 0, *numbers)
    self.assertEqual(black_holes.is_stuck(info), is_stuck)

  def test_finds_a_link_that_drops_large_packets(self):
    connections = connections_lib.Connections()
    with connections.record((0, 1)):
      server = self.enterContext(socket.create_server(("127.0.0.1", 0)))
      near = self.enterContext(socket.create_connection(server.getsockname()))
      near.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 30, 0))
      far = self.enterContext(server.accept()[0])
    door.ease(near)  # Five tries take a second then, and not six.
    drop_large_packets(far)
    near.sendall(b"small")
    self.assertEqual(far.recv(5), b"small")
    self.assertEmpty(connections.find_stuck())
    near.setblocking(False)
    near.send(bytes(4000))
    end_secs = time.monotonic() + 60
    while not (found := connections.find_stuck()):
      self.assertLess(time.monotonic(), end_secs)
    self.assertEqual(found, {("127.0.0.1", "127.0.0.1")})
    far.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)
    self.assertLen(far.recv(4000, socket.MSG_WAITALL), 4000)
    self.assertEmpty(connections.find_stuck())

  def test_cuts_nothing_that_others_have_opened_meanwhile(self):
    connections = connections_lib.Connections()
    with connections.record((0, 2)):
      other = self.open(timeout_secs=0)
      server = self.enterContext(socket.create_server(("127.0.0.1", 0)))
    self.assertEqual(connections.cut({0, 1}), 0)
    self.assertTrue(is_open(other))
    socket.create_connection(server.getsockname(), timeout=5).close()

  def test_cuts_one_that_waits_for_a_machine_that_is_gone(self):
    server = self.enterContext(socket.create_server(("127.0.0.1", 0)))
    server.listen(0)
    connections = connections_lib.Connections()
    with connections.record((0, 2)):
      for _ in range(4):  # The first are taken for it.
        client = self.enterContext(socket.socket())
        client.setblocking(False)
        client.connect_ex(server.getsockname())
      self.assertGreater(connections.cut({0, 1}), 0)

  def test_cuts_one_that_is_just_being_made(self):
    connections = connections_lib.Connections()
    with connections.record((0, 2)):
      pair = self.open()
      self.assertEqual(connections.cut({0, 1}), 2)
    self.assertFalse(is_open(pair))

  def test_a_number_that_has_a_new_owner_is_left_alone(self):
    connections = connections_lib.Connections()
    with connections.record((0, 2)):
      first = self.open()
    numbers = {end.fileno() for end in first}
    for end in first:
      end.close()
    second = self.open()
    self.assertEqual(numbers, {end.fileno() for end in second})
    self.assertEqual(connections.cut({0}), 0)
    self.assertTrue(is_open(second))

  def test_the_log_cuts_when_members_are_gone(self):
    log, pairs = transfer_log.TransferLog(), []
    for peer in (1, 2):
      log.run(channel_lib.Channel("activation", (0, peer), (0,)), lambda: pairs.append(self.open()))
    log.stop(4)
    self.assertEqual([is_open(pair) for pair in pairs], [True, True])
    log.stop(5, alive={0, 1})
    self.assertEqual([is_open(pair) for pair in pairs], [True, False])

  def test_who_meets_may_cut_what_was_opened_meanwhile(self):
    cuts, pairs = [], []

    def meet(nodes, cut):
      del nodes
      cuts.append(cut)
      return contextlib.nullcontext()

    def transfer():
      pairs.append(self.open())
      if len(pairs) == 2:
        cuts[1]()

    log = transfer_log.TransferLog(meet=meet)
    for peer in (1, 2):
      log.run(channel_lib.Channel("activation", (0, peer), (0,)), transfer)
    self.assertEqual([is_open(pair) for pair in pairs], [True, False])
    cuts[1]()  # Nobody meets any more.
    self.assertTrue(is_open(pairs[0]))
