"""What a member of a cluster does for transfers."""

from unittest import mock

from absl.testing import absltest

from bamboo_jax.base import json as json_lib
from bamboo_jax.schedule import channel as channel_lib
from bamboo_jax.training import cohort as cohort_lib
from tests import members


class TransfersTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.client = mock.Mock(adopted=members.view(8, 0, 1, 3))
    self.transport = mock.Mock()
    self.cohort = cohort_lib.ClusterCohort(1, self.transport, None, None)
    self.cohort.client = self.client

  def test_collect_addresses(self):
    said = {0: channel_lib.Begun(address="a"), 1: channel_lib.Begun(waits_for=(7, 3))}
    self.client.collect.return_value = {
        node: json_lib.to_plain(begun) for node, begun in said.items()
    }
    self.cohort.collect_addresses()
    self.transport.set_addresses.assert_called_once_with({0: "a", 1: ""})
    self.transport.connect.assert_called_once_with([0, 3])


if __name__ == "__main__":
  absltest.main()
