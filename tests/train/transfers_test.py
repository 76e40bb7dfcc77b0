"""What a member says and does for transfers."""

from unittest import mock

from absl.testing import parameterized

from bamboo_jax.base import json as json_lib
from bamboo_jax.cluster import views
from bamboo_jax.runtime.phases import compile_ahead
from bamboo_jax.schedule import channel as channel_lib
from bamboo_jax.train.members import cluster_cohort


class TransfersTest(parameterized.TestCase):

  def make(self):
    self.client = mock.Mock(number=1, adopted=views.View(8, (), ""))
    self.transport, self.engine = mock.Mock(), mock.Mock()
    self.is_compiled = True
    made = cluster_cohort.PeerTransfers(self.client, self.transport)
    made.attach(self.engine, lambda: self.is_compiled)
    self.enterContext(mock.patch.object(compile_ahead, "find_partners", return_value=[0, 3]))
    return made

  def test_settle(self):
    made = self.make()
    said = {0: channel_lib.Begun(address="a"), 1: channel_lib.Begun(waits_for=(7, 3))}
    self.client.collect.return_value = {
        node: json_lib.to_plain(begun) for node, begun in said.items()
    }
    made.settle()
    self.transport.set_addresses.assert_called_once_with({0: "a", 1: ""})

  @parameterized.parameters((True, 5), (False, -1))
  def test_ready(self, is_compiled, want):
    made = self.make()
    self.is_compiled = is_compiled
    self.assertEqual(made.ready(5), want)

  def test_all_connect_once_all_are_ready_and_once(self):
    made = self.make()
    made.preconnect([5, -1], 5)
    made.preconnect([4, 4], 5)  # Of the layout before.
    self.transport.connect.assert_not_called()
    made.preconnect([5, 5], 5)
    made.preconnect([5, 5], 5)
    self.transport.connect.assert_called_once_with([0, 3])
    self.client.adopted = views.View(9, (), "")
    made.preconnect([5, 5], 5)
    self.assertLen(self.transport.connect.mock_calls, 2)

  def test_connect(self):
    made = self.make()
    made.connect()
    self.assertTrue(self.transport.connect.called)
