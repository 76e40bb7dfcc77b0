"""A folder of executables takes any harm without harming a run."""

import os
import pathlib
import tempfile
import threading

from absl.testing import absltest, parameterized

from bamboo_jax.runtime.executables import program_folder as folder_lib
from tests import limits, strangers

_KEY, _OTHER = "aa11", "bb22"
_DATA = bytes(range(256))


def give_away(path):
  if os.geteuid():
    raise absltest.SkipTest("needs root")
  os.chown(path, strangers.NOBODY, strangers.NOBODY)


class FolderTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    folder = self.enter_context(tempfile.TemporaryDirectory())
    self.path = pathlib.Path(folder) / "a" / "b"

  def make(self, **options):
    return folder_lib.ProgramFolder(self.path, **options)

  def entry(self, key):
    return self.path / f"{key}.xla"

  def ask(self, folder, key=_KEY):
    """Starts a thread that asks for an entry; returns it, and what it finds."""
    found, asks = [], threading.Event()
    thread = threading.Thread(target=lambda: (asks.set(), found.append(folder.get(key))))
    thread.daemon = True
    thread.start()
    asks.wait()
    return thread, found

  def test_another_process_reads(self):
    self.make().put(_KEY, _DATA)
    other = self.make()
    with self.assertNoLogs():
      self.assertEqual(other.get(_KEY), _DATA)
      self.assertIsNone(other.get(_OTHER))
    self.assertEqual(self.path.stat().st_mode & 0o777, 0o700)

  @parameterized.named_parameters(
      ("empty", lambda e: e.write_bytes(b""), "not what was written"),
      ("truncated", lambda e: e.write_bytes(e.read_bytes()[:-1]), "not what was written"),
      ("one_bit", lambda e: e.write_bytes(e.read_bytes()[:-1] + b"\0"), "not what was written"),
      ("longer", lambda e: e.write_bytes(e.read_bytes() + b"\0"), "not what was written"),
      ("foreign", lambda e: e.write_bytes(b"something else"), "not what was written"),
      # Others have put their folder in its place, with files that they can write.
      ("of_a_group", lambda e: e.chmod(0o664), "others may write to it"),
      ("of_all", lambda e: e.chmod(0o646), "others may write to it"),
      ("of_another_user", give_away, "it belongs to another user"),
  )
  def test_harm_is_a_miss(self, harm, message):
    folder = self.make()
    for key in (_KEY, _OTHER):
      folder.put(key, _DATA)
      harm(self.entry(key))
    with self.assertLogs(level="WARNING") as logs:
      self.assertIsNone(folder.get(_KEY))
      self.assertIsNone(folder.get(_OTHER))
    self.assertLen(logs.output, 1)
    self.assertRegex(logs.output[0], f"{_KEY}.xla, {message}")
    folder.put(_KEY, _DATA)
    self.assertEqual(folder.get(_KEY), _DATA)

  def test_entry_of_another_key(self):
    folder = self.make()
    folder.put(_KEY, _DATA)
    self.entry(_KEY).rename(self.entry(_OTHER))
    with self.assertLogs(level="WARNING"):
      self.assertIsNone(folder.get(_OTHER))

  @parameterized.named_parameters(
      ("all_may_write", lambda p: p.mkdir(mode=0o700) or p.chmod(0o777), "others may write to it"),
      ("a_group", lambda p: p.mkdir(mode=0o700) or p.chmod(0o770), "it; chmod go-w"),
      ("another_user", lambda p: p.mkdir() or give_away(p), "another user"),
      ("no_folder", lambda p: p.touch(), "(File exists|Not a directory).*--program_cache"),
  )
  def test_folder_is_not_used(self, make, message):
    self.path.parent.mkdir()
    make(self.path)
    with self.assertLogs(level="WARNING") as logs:
      folder = self.make()
      folder.put(_OTHER, _DATA)
    self.assertIsNone(folder.get(_OTHER))
    self.assertLen(logs.output, 1)
    self.assertRegex(logs.output[0], message)
    self.assertFalse(self.entry(_OTHER).exists())

  def test_full(self):
    folder = self.make()
    folder.put(_KEY, b"old")
    with self.assertLogs(level="WARNING") as logs, limits.file_size(16):
      folder.put(_KEY, _DATA)
      folder.put(_OTHER, _DATA)
    self.assertLen(logs.output, 1)
    self.assertEqual(folder.get(_KEY), b"old")
    self.assertEqual([path.name for path in self.path.glob("*[!k]")], [f"{_KEY}.xla"])

  def test_what_is_deleted(self):
    """The least recently used, and parts of writers that died."""
    folder = self.make(limit_bytes=1000)
    for age, key in enumerate(("cc", "dd", "ee")):
      folder.put(key, _DATA)
      os.utime(self.entry(key), (age, age))
    for name in ("old.part", "new.part"):
      (self.path / name).touch()
    os.utime(self.path / "old.part", (1, 1))
    folder.get("cc")
    folder.put("ff", _DATA)  # 1240 bytes in all.
    left = {file.name for file in self.path.iterdir()}
    self.assertEqual(left, {"cc.xla", "ee.xla", "ff.xla", "new.part"})
    folder.put("gg", bytes(1001))
    self.assertIsNone(folder.get("gg"))

  def test_one_compiles_and_others_wait_for_its_entry(self):
    folder = self.make(wait_secs=1e6)
    self.assertIsNone(folder.get(_KEY))
    asking, found = self.ask(self.make(wait_secs=1e6))
    asking.join(0.1)  # It ends by then only without the lock.
    self.assertEmpty(found)
    folder.put(_KEY, _DATA)
    asking.join(60.0)
    self.assertEqual(found, [_DATA])

  def test_a_claim_ends(self):
    folder = self.make(wait_secs=1e6)
    folder.put(_OTHER, _DATA)
    self.assertIsNone(folder.get(_KEY))
    folder.get(_OTHER)  # It could not compile the other one.
    asking, found = self.ask(self.make(wait_secs=1e6))
    asking.join(60.0)
    self.assertEqual(found, [None])
    # The thread that has the claim now has ended with nothing: it may be stopped.
    self.assertIsNone(self.make(wait_secs=0).get(_KEY))
