"""What has begun is counted, and nothing begins once it is stopped."""

import contextlib

from absl.testing import absltest
import numpy as np

from bamboo_jax.runtime.spmd.processes import transfer_log
from bamboo_jax.schedule import channel as channel_lib

A, B, C = (channel_lib.Channel(kind, (0, 1), (0,)) for kind in "abc")


class TransferLogTest(absltest.TestCase):

  def test_once_stopped_it_counts_answers_only(self):
    log = transfer_log.TransferLog()
    log.begin(A)
    log.stop(4)
    self.assertEqual(log.begun(), channel_lib.Begun((0, 0), (A,)))
    with self.assertRaises(transfer_log.StoppedError):
      log.begin(B)
    with self.assertRaises(transfer_log.StoppedError):
      log.check()
    log.answer_for(4)
    log.answer(C)
    self.assertEqual(log.begun().channels, (A, C))

  def test_what_an_older_view_owes_is_not_answered(self):
    log = transfer_log.TransferLog()
    log.stop(4)
    log.answer_for(4)
    log.answer(A)
    log.stop(5)  # Another one has died; view 5 is told of A alone.
    with self.assertRaises(transfer_log.StoppedError):
      log.answer(B)
    self.assertEqual(log.begun().channels, (A,))
    log.answer_for(5)
    log.answer(B)
    self.assertEqual(log.begun().channels, (A, B))

  def test_the_first_transfer_of_a_channel_is_a_meeting(self):
    met = []

    def meet(nodes, cut):
      del cut
      met.append(nodes)
      return contextlib.nullcontext()

    log = transfer_log.TransferLog(meet)
    for channel in (A, A, B):
      log.begin(channel)
      self.assertEqual(log.run(channel, lambda: np.zeros(1)), 0)
    self.assertEqual(met, [(0, 1), (0, 1)])

  def test_connections_with_the_dead_are_forgotten(self):
    log = transfer_log.TransferLog()
    other = channel_lib.Channel("a", (0, 2), (0,))
    for channel in (A, other):
      log.begin(channel)
      log.run(channel, lambda: np.zeros(1))
    for alive, left in ((None, {A, other}), ({0, 1, 2}, {A, other}), ({0, 1}, {A})):
      log.stop(5, alive=alive)
      self.assertEqual(log._connected, left)

  def test_settle(self):
    log = transfer_log.TransferLog()
    log.begin(A)
    log.settled(4, 7)
    self.assertEqual(log.begun(), channel_lib.Begun((4, 7), ()))

  def test_an_older_view_does_not_resume(self):
    for stops in ((4, 5), (5, 4)):
      log = transfer_log.TransferLog()
      for view in stops:
        log.stop(view)
      log.settled(4, 0)
      with self.assertRaises(transfer_log.StoppedError):
        log.check()
      log.settled(5, 0)
      log.check()
