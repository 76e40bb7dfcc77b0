import pathlib
import shutil
import tempfile
import threading
from unittest import mock

from absl.testing import parameterized

from bamboo_jax.cluster import records as records_lib


def check(case, again):
  """Fails the case unless records do all they must; `again` opens them, as another node does."""
  records = again()
  records.probe("n0")
  case.assertEqual(records.marks("probe"), {})
  case.assertIsNone(records.find("views/1"))
  case.assertEqual(records.make("views/1", {"a": 1}), {"a": 1})
  case.assertEqual(again().make("views/1", "other"), {"a": 1})
  for number in range(2, 7):
    records.make(f"views/{number}", number)
  case.assertEqual(again().newest("views", 0), 6)
  case.assertEqual(again().follow("views", 1), [2, 3, 4, 5, 6])
  for value in (1, 2):
    records.mark("nodes/a", value)
  records.mark("nodes/b", 3)
  case.assertEqual(again().marks("nodes"), {"a": 2, "b": 3})
  records.drop("nodes/a")
  records.drop("nodes/a")
  case.assertEqual(again().marks("nodes"), {"b": 3})
  case.assertEqual(again().names("nodes"), ["b"])
  with case.assertRaisesRegex(records_lib.LostError, "another secret"):
    again(b"other").find("views/1")


def race(again, count):
  """Has six nodes make the same records at once; returns the values each node then reads."""
  found = [[] for _ in range(6)]

  def make(who):
    records = again()
    found[who] += [records.make(f"views/{i}", who) for i in range(count)]

  threads = [threading.Thread(target=make, args=(who,)) for who in range(6)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  return found


class RecordsTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self._folder = pathlib.Path(tempfile.mkdtemp())
    self.addCleanup(shutil.rmtree, self._folder)
    self._records = records_lib.Records(self._folder, b"key")

  def again(self, key=b"key"):
    return records_lib.Records(self._folder, key)

  def test_what_records_do(self):
    check(self, self.again)

  def test_one_of_many_makers_wins(self):
    found = race(self.again, 40)
    self.assertEqual(found, [[self._records.find(f"views/{i}") for i in range(40)]] * 6)

  @parameterized.parameters(0, 1, 2, 3, 7, 8, 9, 100)
  def test_newest_and_follow(self, count):
    for number in range(1, count + 1):
      self._records.make(f"views/{number}", number)
    self.assertEqual(self._records.newest("views", 0), count)
    self.assertEqual(self._records.newest("views", count), count)
    self.assertEqual(self._records.follow("views", 0), [*range(1, count + 1)])

  def test_few_reads_find_the_newest_of_many(self):
    with mock.patch.object(
        records_lib.Folder, "read", autospec=True, side_effect=lambda _, key: self._read(key)
    ) as read:
      self.assertEqual(self._records.newest("views", 0), 10_000)
    self.assertLess(read.call_count, 30)

  def _read(self, key):
    return b"" if int(key.removeprefix("views/")) <= 10_000 else None

  def test_a_writer_that_was_killed_leaves_no_mark(self):
    self._records.mark("nodes/a", 1)
    (self._folder / "records/nodes/.part-x").write_text("half")
    self.assertEqual(self._records.marks("nodes"), {"a": 1})

  @parameterized.parameters(b"", b"x" * 63, b"{}" * 40, None)
  def test_a_damaged_record_is_named(self, content):
    self._records.make("views/1", 1)
    path = self._folder / "records/views/2"
    if content is None:  # That of another key.
      content = path.with_name("1").read_bytes()
    path.write_bytes(content)
    with self.assertRaisesRegex(records_lib.LostError, f"{path} is damaged"):
      self._records.find("views/2")

  def test_file_and_folder_are_on_disk_before_the_name_counts(self):
    called = []
    note = lambda name, call: lambda *a, **k: (called.append(name), call(*a, **k))[1]
    with mock.patch.object(records_lib.os, "fsync", note("sync", records_lib.os.fsync)):
      with mock.patch.object(records_lib.os, "link", note("link", records_lib.os.link)):
        with mock.patch.object(records_lib.Folder, "read", lambda *_: called.append("read")):
          with self.assertRaises(records_lib.LostError):
            self._records.make("views/1", 1)
    self.assertEqual(called, ["sync", "link", "sync", "sync", "sync", "read"])

  def test_without_hard_links(self):
    with mock.patch.object(records_lib.os, "link", side_effect=PermissionError(1, "no")):
      with self.assertRaisesRegex(OSError, "no hard links.*views/1"):
        self._records.make("views/1", 1)

  def test_no_right_to_write(self):
    records = records_lib.Records("/proc/nothing", b"key")
    with self.assertRaisesRegex(OSError, "/proc/nothing/records/views/1"):
      records.make("views/1", 1)

  def test_an_unknown_url(self):
    with self.assertRaisesRegex(ValueError, "s4://x/y/records is no folder, and no bucket"):
      records_lib.Records("s4://x/y", b"key")
