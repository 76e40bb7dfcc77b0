"""State that moves between two processes."""

import threading
from unittest import mock

from absl.testing import absltest
import numpy as np

from bamboo_jax import base
from bamboo_jax.runtime.wire import endpoints, transport as transport_lib
from bamboo_jax.schedule import failover
from bamboo_jax.training import state_transfer

_COPY = failover.StageCopy(stage=2, source=0, destination=1)
_SIZE = 300
_LIKE = {"a": np.zeros(_SIZE, np.float32), "b": [np.zeros((), np.int32)]}
# The state of a stage is larger than what may be queued, and so is an array.
_QUEUED_BYTES = 1000


def make_state(number):
  return {"a": np.full(_SIZE, number, np.float32), "b": [np.array(number)]}


class Member:
  """A process with one node; its engine and its cohort."""

  def __init__(self, number, state=None):
    self.hosted = {number}
    self.nodes = {number: mock.Mock(layers_of=(state or {}).get)}
    self.specs = [mock.Mock(state=_LIKE)] * 3
    self.load_programs = mock.Mock()
    self.exchange = transport_lib.Transport(
        number, run="r", endpoint=endpoints.listen_unix(), queued_bytes=_QUEUED_BYTES
    )
    self.transfer = state_transfer.StateTransfer(self, self)

  def prefetch(self, copy=_COPY, version=5):
    self.transfer.prefetch([copy], version=version)


class StateTransferTest(absltest.TestCase):

  def make(self):
    members = Member(0, {2: make_state(1)}), Member(1)
    for member in members:
      self.addCleanup(member.exchange.close)
      addresses = {n: m.exchange.address for n, m in enumerate(members)}
      member.exchange.set_addresses(addresses)
      member.exchange.begin(1)
    return members

  def check(self, taker, number):
    taker.transfer.install()
    (call,) = taker.nodes[1].put_state.call_args_list
    (state,) = call.args
    np.testing.assert_array_equal(state["a"], [number] * _SIZE)
    self.assertEqual(state["b"][0], number)

  def test_state_moves(self):
    source, taker = self.make()
    source.prefetch()
    taker.prefetch()
    self.assertEqual(taker.transfer.fetched_for, 5)
    taker.nodes[1].put_state.assert_not_called()
    self.check(taker, 1)

  def test_what_was_sent_for_a_change_that_never_was_is_not_taken(self):
    source, taker = self.make()
    source.prefetch()  # The taker died or was interrupted: version 5 again.
    source.nodes[0].layers_of = {2: make_state(2)}.get
    for member in (taker, source):
      member.exchange.begin(2)
    source.prefetch()
    taker.prefetch()
    self.check(taker, 2)

  def test_nobody_waits_for_a_source_that_is_gone(self):
    _, taker = self.make()
    lose = lambda: taker.exchange.remove([0], "it died")
    timer = threading.Timer(0.1, lose)
    timer.start()
    with self.assertRaisesRegex(base.PeerRemovedError, "it died"):
      taker.prefetch()

  def test_what_was_fetched_for_a_change_that_never_was_is_dropped(self):
    both = Member(1, {2: make_state(1)})
    self.addCleanup(both.exchange.close)
    both.prefetch(failover.StageCopy(stage=2, source=1, destination=1))
    self.assertEqual(both.transfer.fetched_for, 5)
    both.transfer.forget()
    self.assertEqual(both.transfer.fetched_for, -1)
    both.transfer.install()
    both.nodes[1].put_state.assert_not_called()
