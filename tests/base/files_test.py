import os
import pathlib
import re
import subprocess
import sys
from unittest import mock

from absl.testing import parameterized

from bamboo_jax import base
from bamboo_jax.metrics import jsonl
from bamboo_jax.net import identity
from tests import folders, limits


class FilesTest(folders.FolderCase):

  def setUp(self):
    super().setUp()
    self.path = self.folder / "file"

  @parameterized.parameters(
      # Seconds that each read hangs before it fails, and how many are made.
      ([1.0] * 60, 29),
      ([300.0, 1.0, 0.0], 4),  # The patience begins with the first error.
      ([300.0, 30.0, 0.0], 2),
      ([], 1),
  )
  def test_a_read_is_retried(self, hangs, want):
    now, count = [0.0], 0

    def read():
      nonlocal count
      count += 1
      if count <= len(hangs):
        now[0] += hangs[count - 1]
        raise OSError("away")
      return "there"

    clock = {"monotonic": lambda: now[0], "sleep": lambda secs: now.__setitem__(0, now[0] + secs)}
    self.enterContext(mock.patch.multiple("time", **clock))
    if want == len(hangs) + 1:
      self.assertEqual(base.ask_again(read), "there")
    else:
      with self.assertRaisesRegex(OSError, "away"):
        base.ask_again(read)
    self.assertEqual(count, want)

  @parameterized.parameters(
      ("file:///shared/my%20run", "/shared/my run"),
      (pathlib.Path("/shared/%20"), "/shared/%20"),
      ("file://host/run", "file://host/run"),  # That is refused.
      ("s3://b/run", "s3://b/run"),
  )
  def test_the_path_of_a_url(self, url, path):
    self.assertEqual(base.find_place(url), path)

  @parameterized.parameters(("text", {}, 0o644), (b"\0bytes", {"mode": 0o600}, 0o600))
  def test_content_is_replaced(self, content, options, mode):
    base.write_atomically(self.path, "the former content")
    base.write_atomically(self.path, content, **options)
    wanted = content.encode() if isinstance(content, str) else content
    self.assertEqual(self.path.read_bytes(), wanted)
    self.assertEqual(self.path.stat().st_mode & 0o777, mode)
    self.assertEqual(os.listdir(self.folder), ["file"])

  def test_files_that_others_read_are_replaced_not_rewritten(self):
    private = {  # Folders of one process, or files that a next start rewrites.
        "bamboo_jax/api.py",
        "bamboo_jax/net/identity.py",
        "bamboo_jax/verify/table.py",
    }
    found = {
        path.relative_to(folders.ROOT).as_posix()
        for folder in ("bamboo_jax", "launch")
        for path in (folders.ROOT / folder).rglob("*.py")
        if re.search(r"\.write_(text|bytes)\(", path.read_text())
    }
    self.assertEqual(found - private, set())

  def test_full_disk_leaves_the_former_content(self):
    base.write_atomically(self.path, "former")
    too_large = f"File too large: '{self.path}'"
    with limits.file_size(10), self.assertRaisesRegex(OSError, too_large):
      base.write_atomically(self.path, "x" * 100)
    self.assertEqual(self.path.read_text(), "former")
    self.assertEqual(os.listdir(self.folder), ["file"])

  @parameterized.parameters(None, 0o644)
  def test_readers_cannot_hold_the_lock(self, mode):
    path = self.folder / ".lock"
    if mode is not None:  # An earlier version has made it.
      path.touch()
      path.chmod(mode)
    with base.lock_folder(self.folder):
      self.assertEqual(path.stat().st_mode & 0o777, 0o600)

  def test_a_folder_has_one_user_until_its_process_ends(self):
    folder = self.folder / "runs" / "a"
    code = (
        "import sys; from bamboo_jax import base\n"
        f"with base.lock_folder({str(folder)!r}):\n"
        "  print(flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    self.addCleanup(child.communicate)
    self.addCleanup(child.kill)
    child.stdout.readline()
    with self.assertRaisesRegex(ValueError, f"^{folder} is in use by process {child.pid} on "):
      with base.lock_folder(folder):
        pass
    child.kill()
    child.wait()
    for _ in range(2):  # It is free again afterwards, too.
      with base.lock_folder(folder):
        pass

  def test_no_folder(self):
    path = self.folder / "no" / "file"
    with self.assertRaisesRegex(FileNotFoundError, f": '{path}'"):
      base.write_atomically(path, "text")

  @parameterized.parameters(
      ("", lambda folder: base.lock_folder(folder).__enter__()),
      ("/secret", identity.draw_secret),
      ("/nodes.jsonl", lambda folder: jsonl.note_node(folder, "start", "n0")),
  )
  def test_a_full_disk_is_named(self, name, write):
    with limits.file_size(0), self.assertRaises(OSError) as caught:
      write(self.folder)
    self.assertEqual(caught.exception.filename, f"{self.folder}{name}")
