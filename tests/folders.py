"""Tests that write files, read those of the repository, or catch what is printed."""

import contextlib
import io
import json
import pathlib
import tempfile

from absl.testing import parameterized

ROOT = pathlib.Path(__file__).resolve().parents[1]  # Of the repository.


class FolderCase(parameterized.TestCase):
  """Each test has a `folder` of its own, which is gone afterwards."""

  def setUp(self):
    super().setUp()
    folder = self.enterContext(tempfile.TemporaryDirectory())
    self.folder = pathlib.Path(folder)

  def refuses_if(self, problem):
    """Expects a `ValueError` that matches `problem` in a block; none if it is empty."""
    return self.assertRaisesRegex(ValueError, problem) if problem else contextlib.nullcontext()


def printed():
  """Returns a block whose value has what is printed in it."""
  return contextlib.redirect_stdout(io.StringIO())


def write_lines(path, lines):
  """Writes values of JSON, each in a line."""
  path.write_text("".join(json.dumps(line) + "\n" for line in lines))


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
