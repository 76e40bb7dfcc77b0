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


def read_all(folder):
  """Returns the content of all files below a folder, by path.

  Folders have None. Locks (`base.lock_folder`), and folders with nothing else
  in them, are left out.
  """
  paths = [p for p in pathlib.Path(folder).rglob("*") if p.name != ".lock"]
  return {
      str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None
      for p in paths
      if p.is_file() or any(q.name != ".lock" for q in p.iterdir())
  }
