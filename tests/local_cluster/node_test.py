import resource

from absl.testing import absltest

from bamboo_jax.local_cluster import node


class NodeTest(absltest.TestCase):

  def test_as_many_files_as_may_be(self):
    """Others open two sockets each to an agent: there may be hundreds."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, limits[1]))
    node.allow_files()
    found = resource.getrlimit(resource.RLIMIT_NOFILE)
    self.assertEqual(found, (limits[1], limits[1]))


if __name__ == "__main__":
  absltest.main()
