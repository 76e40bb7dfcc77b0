"""A folder is taken over only from a run that is over."""

import time
from unittest import mock

from absl.testing import parameterized

from bamboo_jax.cluster.store import fence as fence_lib
from bamboo_jax.local_cluster import machine
from tests import folders


class MachineTest(folders.FolderCase):

  @parameterized.parameters(True, False)
  def test_members_that_live_keep_their_folder(self, live):
    fence = fence_lib.Fence(self.folder)
    fence.create("stamp")
    one = object.__new__(machine.LocalCluster)
    one._fence, one._logs = fence, self.folder / "logs"
    one._found, one._found_secs = fence.read(), time.monotonic()

    def sleep(secs):
      self.assertBetween(secs, 3.5, 4.0)
      if live:
        fence.beat()

    with mock.patch.object(time, "sleep", sleep):
      if live:
        with self.assertRaisesRegex(ValueError, "Members of a run live in "):
          one.take_folder()
      else:
        one.take_folder()
    self.assertEqual(fence.read()[0] is not None, live)
