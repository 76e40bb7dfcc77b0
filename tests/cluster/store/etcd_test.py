"""The client of etcd, and a real etcd."""

import tempfile

from absl.testing import absltest

from bamboo_jax.cluster.store import etcd as etcd_lib
from tests.launch import commands


@commands.needs_etcd
class EtcdTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    folder = self.enter_context(tempfile.TemporaryDirectory())
    server = commands.start_etcd(folder, self.addCleanup)
    self.etcd = etcd_lib.Etcd("127.0.0.1", server.port, timeout_secs=20)

  def test_values(self):
    self.assertIsNone(self.etcd.get("/a/1"))
    for key, value in (("/a/1", ""), ("/a/2", "ä {}"), ("/b", "x")):
      self.etcd.put(key, value)
    found = [(e.key, e.value) for e in self.etcd.get_all("/a/")]
    self.assertEqual(found, [("/a/1", ""), ("/a/2", "ä {}")])
    self.assertEqual(self.etcd.get("/b").value, "x")

  def test_ranges(self):
    for key in ("/a/1", "/a/2", "/a/3", "/b"):
      self.etcd.put(key, key)
    found = self.etcd.get_all("/a/", after="1")
    self.assertEqual([e.key for e in found], ["/a/2", "/a/3"])
    self.assertEqual(self.etcd.get_last("/a/").value, "/a/3")
    self.assertIsNone(self.etcd.get_last("/c/"))

  def test_swap_wins_once(self):
    self.assertTrue(self.etcd.swap("/a", "1", revision=0))
    self.assertFalse(self.etcd.swap("/a", "2", revision=0))
    revision = self.etcd.get("/a").revision
    self.assertTrue(self.etcd.swap("/a", "3", revision=revision))
    self.assertFalse(self.etcd.swap("/a", "4", revision=revision))
    self.assertEqual(self.etcd.get("/a").value, "3")

  def test_leases(self):
    lease = self.etcd.grant_lease(60)
    self.etcd.put("/a", "1", lease=lease)
    self.assertTrue(self.etcd.keep_lease(lease))
    self.etcd.revoke_lease(lease)
    self.assertIsNone(self.etcd.get("/a"))
    self.assertFalse(self.etcd.keep_lease(lease))
