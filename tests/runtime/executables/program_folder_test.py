"""A folder of executables takes any harm without harming a run."""

import os
import pathlib
import tempfile
import threading

from absl.testing import absltest, parameterized

from bamboo_jax import base
from bamboo_jax.runtime.executables import program_folder as folder_lib
from tests import limits, strangers

_KEY, _OTHER = "aa11", "bb22"
_DATA = bytes(range(256))


class FolderTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    folder = self.enter_context(tempfile.TemporaryDirectory())
    self.path = pathlib.Path(folder) / "a" / "b"

  def entry(self, key):
    return self.path / f"{key}.xla"

  def test_another_process_reads(self):
    folder_lib.ProgramFolder(self.path).put(_KEY, _DATA)
    other = folder_lib.ProgramFolder(self.path)
    with self.assertNoLogs():
      self.assertEqual(other.get(_KEY), _DATA)
      self.assertIsNone(other.get(_OTHER))
    self.assertEqual(self.path.stat().st_mode & 0o777, 0o700)

  @parameterized.named_parameters(
      ("empty", lambda content: b""),
      ("truncated", lambda content: content[:-1]),
      ("one_bit", lambda content: content[:-1] + bytes([content[-1] ^ 1])),
      ("longer", lambda content: content + b"\0"),
      ("foreign", lambda content: b"something else"),
  )
  def test_damage_is_a_miss(self, damage):
    folder = folder_lib.ProgramFolder(self.path)
    for key in (_KEY, _OTHER):
      folder.put(key, _DATA)
      self.entry(key).write_bytes(damage(self.entry(key).read_bytes()))
    with self.assertLogs(level="WARNING") as logs:
      self.assertIsNone(folder.get(_KEY))
      self.assertIsNone(folder.get(_OTHER))
    self.assertLen(logs.output, 1)
    folder.put(_KEY, _DATA)
    self.assertEqual(folder.get(_KEY), _DATA)

  def test_entry_of_another_key(self):
    folder = folder_lib.ProgramFolder(self.path)
    folder.put(_KEY, _DATA)
    self.entry(_KEY).rename(self.entry(_OTHER))
    with self.assertLogs(level="WARNING"):
      self.assertIsNone(folder.get(_OTHER))

  @parameterized.parameters(0o777, 0o770)
  def test_others_may_write(self, mode):
    folder_lib.ProgramFolder(self.path).put(_KEY, _DATA)
    self.path.chmod(mode)
    with self.assertLogs(level="WARNING") as logs:
      folder = folder_lib.ProgramFolder(self.path)
      self.assertIsNone(folder.get(_KEY))
      folder.put(_OTHER, _DATA)
    self.assertRegex(logs.output[0], r"others may write to it; chmod go-w")
    self.assertFalse(self.entry(_OTHER).exists())

  @parameterized.parameters(0o664, 0o646)
  def test_others_may_exchange_it(self, mode):
    """Their folder is in its place, with a file that they could write."""
    folder = folder_lib.ProgramFolder(self.path)
    folder.put(_KEY, _DATA)
    self.assertEqual(folder.get(_KEY), _DATA)
    self.path.rename(self.path.with_name("c"))
    self.path.mkdir()
    self.entry(_KEY).write_bytes((self.path.with_name("c") / "aa11.xla").read_bytes())
    self.entry(_KEY).chmod(mode)
    with self.assertLogs(level="WARNING") as logs:
      self.assertIsNone(folder.get(_KEY))
    self.assertRegex(logs.output[0], "aa11.xla, others may write to it")

  @absltest.skipUnless(os.geteuid() == 0, "needs root")
  def test_an_entry_of_another_user(self):
    folder = folder_lib.ProgramFolder(self.path)
    folder.put(_KEY, _DATA)
    os.chown(self.entry(_KEY), strangers.NOBODY, strangers.NOBODY)
    with self.assertLogs(level="WARNING") as logs:
      self.assertIsNone(folder.get(_KEY))
    self.assertRegex(logs.output[0], "aa11.xla, it belongs to another user")

  def test_belongs_to_another_user(self):
    self.path.mkdir(parents=True)
    status = list(self.path.stat())
    status[4] = os.geteuid() + 1
    danger = base.find_danger(os.stat_result(status))
    self.assertRegex(danger, "another user")

  def test_cannot_be_made(self):
    self.path.parent.touch()
    with self.assertLogs(level="WARNING") as logs:
      folder = folder_lib.ProgramFolder(self.path)
    self.assertRegex(logs.output[0], "Not a directory.*--program_cache")
    folder.put(_KEY, _DATA)
    self.assertIsNone(folder.get(_KEY))

  def test_full(self):
    folder = folder_lib.ProgramFolder(self.path)
    folder.put(_KEY, b"old")
    with self.assertLogs(level="WARNING") as logs, limits.file_size(16):
      folder.put(_KEY, _DATA)
      folder.put(_OTHER, _DATA)
    self.assertLen(logs.output, 1)
    self.assertEqual(folder.get(_KEY), b"old")
    self.assertEqual([path.name for path in self.path.glob("*[!k]")], [f"{_KEY}.xla"])

  def test_least_recently_used_goes(self):
    folder = folder_lib.ProgramFolder(self.path, limit_bytes=1000)
    for age, key in enumerate(("cc", "dd", "ee")):
      folder.put(key, _DATA)
      os.utime(self.entry(key), (age, age))
    folder.get("cc")
    folder.put("ff", _DATA)  # 1240 bytes in all.
    left = {file.stem for file in self.path.iterdir()}
    self.assertEqual(left, {"cc", "ee", "ff"})
    folder.put("gg", bytes(1001))
    self.assertIsNone(folder.get("gg"))

  def test_one_compiles_and_others_wait_for_its_entry(self):
    folder = folder_lib.ProgramFolder(self.path, wait_secs=1e6)
    other = folder_lib.ProgramFolder(self.path, wait_secs=1e6)
    self.assertIsNone(folder.get(_KEY))
    found, asks = [], threading.Event()

    def ask():
      asks.set()
      found.append(other.get(_KEY))

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asks.wait()
    asking.join(0.1)  # It ends by then only without the lock.
    self.assertEmpty(found)
    folder.put(_KEY, _DATA)
    asking.join(60.0)
    self.assertEqual(found, [_DATA])

  def test_a_claim_ends(self):
    patient = folder_lib.ProgramFolder(self.path, wait_secs=1e6)
    patient.put(_OTHER, _DATA)
    self.assertIsNone(patient.get(_KEY))
    patient.get(_OTHER)  # It could not compile the other one.
    other, found = folder_lib.ProgramFolder(self.path, wait_secs=1e6), []
    asking = threading.Thread(target=lambda: found.append(other.get(_KEY)), daemon=True)
    asking.start()
    asking.join(60.0)
    self.assertEqual(found, [None])

  def test_who_has_a_claim_may_have_been_stopped(self):
    stopped = folder_lib.ProgramFolder(self.path)
    self.assertIsNone(stopped.get(_KEY))
    self.assertIsNone(folder_lib.ProgramFolder(self.path, wait_secs=0).get(_KEY))

  def test_writer_that_died(self):
    folder = folder_lib.ProgramFolder(self.path)
    for name, age in (("old.part", 1), ("new.part", None)):
      (self.path / name).touch()
      if age:
        os.utime(self.path / name, (age, age))
    folder.put(_KEY, _DATA)
    left = {file.name for file in self.path.iterdir()}
    self.assertEqual(left, {"new.part", f"{_KEY}.xla"})
