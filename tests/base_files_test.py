import os
import pathlib
import resource
import tempfile

from absl.testing import absltest
from absl.testing import parameterized

from bamboo_jax import base


class FilesTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.root = self.enterContext(tempfile.TemporaryDirectory())
    self.path = pathlib.Path(self.root, "file")

  @parameterized.parameters("text", b"\0bytes", "")
  def test_content_is_replaced(self, content):
    base.write_atomically(self.path, "the former content")
    base.write_atomically(self.path, content)
    wanted = content.encode() if isinstance(content, str) else content
    self.assertEqual(self.path.read_bytes(), wanted)
    self.assertEqual(os.listdir(self.root), ["file"])

  def test_full_disk_leaves_the_former_content(self):
    base.write_atomically(self.path, "former")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
      with self.assertRaisesRegex(OSError, f"File too large: '{self.path}'"):
        base.write_atomically(self.path, "x" * 100)
    finally:
      resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    self.assertEqual(self.path.read_text(), "former")
    self.assertEqual(os.listdir(self.root), ["file"])

  def test_no_folder(self):
    path = pathlib.Path(self.root, "no", "file")
    with self.assertRaisesRegex(FileNotFoundError, f": '{path}'"):
      base.write_atomically(path, "text")


if __name__ == "__main__":
  absltest.main()
