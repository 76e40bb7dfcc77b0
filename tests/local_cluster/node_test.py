import resource
from unittest import mock

from absl.testing import absltest

from bamboo_jax.local_cluster import node
from tests.cluster.agent import given


class NodeTest(absltest.TestCase):

  def test_as_many_files_as_may_be(self):
    """Others open two sockets each to an agent: there may be hundreds."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, limits[1]))
    node.allow_files()
    found = resource.getrlimit(resource.RLIMIT_NOFILE)
    self.assertEqual(found, (limits[1], limits[1]))

  def test_who_begins_again_is_told_so(self):
    lives = []

    class Agent:

      def __init__(self, etcd, options, identity, spare):
        lives.append((options.is_again, spare))
        self.begins_again = len(lives) < 3

      async def run(self):
        return ""

    self.enterContext(mock.patch.object(node.agent_lib, "Agent", Agent))
    node.run(None, given.make_options("n0"), None, "spare")
    self.assertEqual(lives, [(False, "spare"), (True, None), (True, None)])
