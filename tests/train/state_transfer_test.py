"""State that moves between two processes, each with its blob server."""

from concurrent import futures
import types
from unittest import mock

from absl.testing import absltest
import numpy as np

from bamboo_jax.cluster import blobs as blobs_lib
from bamboo_jax.cluster import identity as identity_lib
from bamboo_jax.schedule import failover
from bamboo_jax.train import state_transfer

_COPY = failover.Copy(stage=2, source=0, destination=1)


class Member:
  """A process with one node; its engine and its cohort."""

  def __init__(self, number, state=None):
    self.hosted = {number}
    self.view = types.SimpleNamespace(number=1)
    self.nodes = {number: mock.Mock(state=state or {})}
    self.specs = [mock.Mock(state=[np.zeros(3, np.float32)])] * 3
    self.load_programs, self.check = mock.Mock(), mock.Mock()
    self.gather = mock.Mock()
    self.log = mock.Mock()
    self.peers = blobs_lib.Peers(
        "127.0.0.1",
        identity_lib.issue(
            secret=b"s", run="run", role="worker", name=f"n{number}"
        ),
    )
    self.transfer = state_transfer.StateTransfer(self, self, self.peers)

  def prefetch(self):
    self.transfer.prefetch([_COPY], version=5)


class StateTransferTest(absltest.TestCase):

  def test_nobody_fetches_before_all_have_offered(self):
    source = Member(0, {2: [np.full(3, 1.0, np.float32)]})
    taker, waits = Member(1), ValueError("One is still at it.")
    taker.peers.addresses = {0: source.peers.address}
    taker.gather.side_effect = waits
    with mock.patch.object(taker.peers, "fetch") as fetch:
      with self.assertRaises(ValueError):
        taker.prefetch()
    fetch.assert_not_called()
    with mock.patch.object(source.peers, "offer") as offer:
      source.gather.side_effect = lambda *_: offer.assert_called_once()
      source.prefetch()
    for member in source, taker:
      member.gather.assert_called_once_with("offered 5", None)

  def test_what_was_offered_for_a_change_that_never_was_is_not_taken(self):
    source = Member(0, {2: [np.full(3, 1.0, np.float32)]})
    source.prefetch()  # Who wanted it died, so version 4 is still in force.
    source.nodes[0].state[2] = [np.full(3, 2.0, np.float32)]
    taker = Member(1)
    taker.peers.addresses = {0: source.peers.address}
    source.view.number = taker.view.number = 3
    with futures.ThreadPoolExecutor(1) as thread:
      taken = thread.submit(taker.prefetch)
      futures.wait([taken], timeout=1.0)  # The source is slower.
      source.prefetch()
      taken.result()
    taker.transfer.install()
    (call,) = taker.nodes[1].put_state.call_args_list
    np.testing.assert_array_equal(call.args[1][0], [2.0, 2.0, 2.0])

  def test_who_offers_late_is_asked_again(self):
    source, taker = Member(0, {2: [np.full(3, 1.0, np.float32)]}), Member(1)
    taker.peers.addresses = {0: source.peers.address}
    with futures.ThreadPoolExecutor(1) as thread:
      with mock.patch.object(blobs_lib, "_OFFER_SECS", 0.05):
        with mock.patch.object(
            taker.peers, "fetch", wraps=taker.peers.fetch
        ) as fetch:
          taken = thread.submit(taker.prefetch)
          while fetch.call_count < 3:
            self.assertEqual(futures.wait([taken], timeout=0.01).done, set())
      taker.check.assert_not_called()  # Nothing has come.
      source.prefetch()
      taken.result(30)
    taker.check.assert_called()

  def test_who_is_gone_is_not_asked_for_ever(self):
    taker = Member(1)
    taker.log.check.side_effect = [None] * 3 + [ValueError("Stopped.")]
    with self.assertRaisesRegex(ValueError, "Stopped."):
      taker.prefetch()

  def test_what_is_not_state_stays_on_offer(self):
    source, taker = Member(0, {2: [np.full(3, 1.0, np.float32)]}), Member(1)
    source.peers.offer("address", b"x")
    source.prefetch()
    source.transfer.install()
    taker.peers.addresses = {0: source.peers.address}
    found = taker.peers.fetch(0, "address", taker.check)
    self.assertEqual(found, b"x")
    with self.assertRaisesRegex(ConnectionError, "where node 4 is"):
      taker.peers.fetch(4, "address", taker.check)

  def test_what_was_fetched_for_a_change_that_never_was_is_dropped(self):
    both = Member(1, {2: [np.full(3, 1.0, np.float32)]})
    copy = failover.Copy(stage=2, source=1, destination=1)
    both.transfer.prefetch([copy], version=5)
    self.assertEqual(both.transfer.fetched_for, 5)
    both.transfer.forget()
    self.assertEqual(both.transfer.fetched_for, -1)
    both.transfer.install()
    both.nodes[1].put_state.assert_not_called()
