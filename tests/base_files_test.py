import os
import pathlib
import resource
import signal
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

  def test_a_folder_has_one_user(self):
    folder = pathlib.Path(self.root, "runs", "a")
    busy = f"{folder} is in use by process {os.getpid()} on "
    for _ in range(2):  # It is free again afterwards.
      with base.lock_folder(folder):
        with self.assertRaisesRegex(ValueError, busy):
          with base.lock_folder(folder):
            pass
        with base.lock_folder(self.root):
          pass

  def test_the_lock_of_a_killed_process_is_gone(self):
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:
      with base.lock_folder(self.root):
        os.write(tell, b"x")
        signal.pause()
    os.read(ready, 1)
    with self.assertRaisesRegex(ValueError, f"in use by process {child} on"):
      with base.lock_folder(self.root):
        pass
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with base.lock_folder(self.root):
      pass

  def test_no_folder(self):
    path = pathlib.Path(self.root, "no", "file")
    with self.assertRaisesRegex(FileNotFoundError, f": '{path}'"):
      base.write_atomically(path, "text")


if __name__ == "__main__":
  absltest.main()
