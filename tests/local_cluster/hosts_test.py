"""Which machines `bamboo up` tries again."""

import types

from absl.testing import parameterized

from bamboo_jax.local_cluster import hosts


class FleetTest(parameterized.TestCase):

  @parameterized.parameters(
      (0, False),  # The run is complete.
      (1, True),  # Its agent has failed.
      (255, True),  # ssh could not connect.
      (2, False),  # A mistake of the user: the next try would end so, too.
  )
  def test_exit_status(self, code, is_tried_again):
    host = hosts.Host("m", "a")
    fleet = hosts.Fleet([host], ssh=["ssh"], agent=["bamboo", "agent"])
    fleet._running[host] = types.SimpleNamespace(poll=lambda: code)
    fleet._tend(0.0)
    self.assertEqual([*fleet._failed_secs], [host] * is_tried_again)
