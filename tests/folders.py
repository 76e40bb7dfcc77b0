"""Tests that write files."""

import pathlib
import tempfile

from absl.testing import parameterized


class FolderCase(parameterized.TestCase):
  """Each test has a `folder` of its own, which is gone afterwards."""

  def setUp(self):
    super().setUp()
    folder = self.enterContext(tempfile.TemporaryDirectory())
    self.folder = pathlib.Path(folder)
