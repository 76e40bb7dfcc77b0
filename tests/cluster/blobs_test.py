"""A server of blobs has no patience with strangers."""

import socket
from unittest import mock

from absl.testing import absltest

from bamboo_jax.cluster import blobs as blobs_lib
from bamboo_jax.cluster import identity as identity_lib


class BlobsTest(absltest.TestCase):

  def test_who_says_nothing_is_cut(self):
    identity = identity_lib.issue(
        secret=b"s", run="run", role="worker", name="n0"
    )
    with mock.patch.object(blobs_lib, "_HELLO_SECS", 0.2):
      peers = blobs_lib.Peers("127.0.0.1", identity)
      with socket.create_connection(peers.address, timeout=10.0) as stranger:
        self.assertEqual(stranger.recv(1), b"")
