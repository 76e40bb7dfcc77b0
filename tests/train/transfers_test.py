"""What a member says and does for transfers."""

from unittest import mock

from absl.testing import parameterized

from bamboo_jax.base import json as json_lib
from bamboo_jax.cluster import views
from bamboo_jax.runtime.phases import compile_ahead
from bamboo_jax.runtime.spmd.processes import transfer_log
from bamboo_jax.schedule import channel as channel_lib
from bamboo_jax.train.members import transfers as transfers_lib

_MEET = channel_lib.Channel("meet", (0, 1))


class TransfersTest(parameterized.TestCase):

  def make(self, *, preconnects=True):
    self.client = mock.Mock(number=1, adopted=views.View(8, (), ""))
    self.peers, self.engine = mock.Mock(), mock.Mock()
    self.compiler = mock.Mock(is_idle=True)
    made = transfers_lib.PeerTransfers(
        self.client,
        transfer_log.TransferLog(),
        self.peers,
        preconnects=preconnects,
    )
    made.attach(self.engine, self.compiler)
    return made

  def test_it_knows_where_others_are_before_it_answers_them(self):
    made = self.make()
    said = {
        0: channel_lib.Begun((7, 3), (_MEET,), ("a", 1)),
        1: channel_lib.Begun((7, 3), (), ("b", 2)),
    }
    self.client.collect.return_value = {
        node: json_lib.to_plain(begun) for node, begun in said.items()
    }

    def answer(channel):
      self.assertEqual(channel, _MEET)
      self.assertEqual(self.peers.addresses, {0: ("a", 1), 1: ("b", 2)})

    self.engine.preconnections.answer.side_effect = answer
    made.settle()
    self.engine.preconnections.answer.assert_called_once()

  @parameterized.parameters(
      (True, True, 5), (True, False, -1), (False, True, -1)
  )
  def test_ready(self, preconnects, is_idle, want):
    made = self.make(preconnects=preconnects)
    self.compiler.is_idle = is_idle
    self.assertEqual(made.ready(5), want)

  def test_all_connect_once_all_are_ready_and_once(self):
    made = self.make()
    with mock.patch.object(compile_ahead, "preconnect", return_value=1) as run:
      made.preconnect([5, -1], 5)
      made.preconnect([4, 4], 5)  # It was of the layout before.
      run.assert_not_called()
      made.preconnect([5, 5], 5)
      made.preconnect([5, 5], 5)
      run.assert_called_once_with(self.engine, ahead=True)
      self.client.adopted = views.View(9, (), "")
      made.preconnect([5, 5], 5)
      self.assertLen(run.mock_calls, 2)

  @parameterized.parameters(True, False)
  def test_connect(self, preconnects):
    made = self.make(preconnects=preconnects)
    with mock.patch.object(compile_ahead, "preconnect", return_value=1) as run:
      made.connect()
    self.assertEqual(run.called, preconnects)
