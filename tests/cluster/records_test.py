import pathlib
import shutil
import tempfile
import threading
from unittest import mock

from absl.testing import absltest, parameterized

from bamboo_jax.cluster import records as records_lib
from tests.cluster.agent import given


class RecordsTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self._folder = pathlib.Path(tempfile.mkdtemp())
    self.addCleanup(shutil.rmtree, self._folder)
    self._records = records_lib.Records(self._folder, b"key")

  def test_a_record_is_made_once(self):
    other = records_lib.Records(self._folder, b"key")
    self.assertIsNone(self._records.find("views/1"))
    self.assertEqual(self._records.make("views/1", {"a": 1}), {"a": 1})
    self.assertEqual(other.make("views/1", "mine"), {"a": 1})
    self.assertEqual(other.find("views/1"), {"a": 1})

  def test_one_of_many_makers_wins(self):
    found = [[] for _ in range(6)]

    def make(who):
      records = records_lib.Records(self._folder, b"key")
      found[who] = [records.make(f"views/{i}", who) for i in range(40)]

    threads = [threading.Thread(target=make, args=(who,)) for who in range(6)]
    for thread in threads:
      thread.start()
    for thread in threads:
      thread.join()
    for values in found[1:]:
      self.assertEqual(values, found[0])
    self.assertEqual(found[0], [self._records.find(f"views/{i}") for i in range(40)])

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

  def test_marks(self):
    self.assertEqual(self._records.marks("nodes"), {})
    for value in (1, 2):
      self._records.mark("nodes/a", value)
    self._records.mark("nodes/b", 3)
    self.assertEqual(self._records.marks("nodes"), {"a": 2, "b": 3})
    self._records.drop("nodes/a")
    self._records.drop("nodes/a")
    self.assertEqual(self._records.marks("nodes"), {"b": 3})
    self.assertEqual(self._records.names("nodes"), ["b"])

  def test_a_writer_that_was_killed_leaves_no_mark(self):
    self._records.mark("nodes/a", 1)
    (self._folder / "records/nodes/.part-x").write_text("half")
    self.assertEqual(self._records.marks("nodes"), {"a": 1})

  @parameterized.parameters(b"", b"x" * 63, b"{}" * 40)
  def test_a_damaged_record_is_named(self, content):
    self._records.make("views/1", 1)
    path = self._folder / "records/views/1"
    path.write_bytes(content)
    with self.assertRaisesRegex(records_lib.LostError, f"{path} is damaged"):
      self._records.find("views/1")

  def test_a_record_of_another_key_does_not_count(self):
    self._records.make("views/1", 1)
    path = self._folder / "records/views/1"
    (self._folder / "records/views/2").write_bytes(path.read_bytes())
    with self.assertRaises(records_lib.LostError):
      self._records.find("views/2")

  def test_another_secret(self):
    self._records.make("views/1", 1)
    with self.assertRaisesRegex(records_lib.LostError, "another secret"):
      records_lib.Records(self._folder, b"other").make("views/1", 2)

  def test_file_and_folder_are_on_disk_before_the_name_counts(self):
    called = []
    note = lambda name, call: lambda *a, **k: (called.append(name), call(*a, **k))[1]
    with mock.patch.object(records_lib.os, "fsync", note("sync", records_lib.os.fsync)):
      with mock.patch.object(records_lib.os, "link", note("link", records_lib.os.link)):
        with mock.patch.object(records_lib.Folder, "read", lambda *_: called.append("read")):
          with self.assertRaises(records_lib.LostError):
            self._records.make("views/1", 1)
    self.assertEqual(called, ["sync", "link", "sync", "sync", "sync", "read"])

  def test_probe(self):
    self._records.probe("a")
    self.assertEqual(self._records.marks("probe"), {})
    self._records._place = place = given.Place()
    place.create = place.put
    with self.assertRaisesRegex(records_lib.LostError, "replaces what is there"):
      self._records.probe("a")

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

  def test_a_bucket_that_gives_no_answer(self):
    environ = {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
    }
    with mock.patch.dict(records_lib.os.environ, environ):
      records = records_lib.Records("s3://bucket/run", b"key")
      with self.assertRaisesRegex(OSError, "^s3://bucket/run/records: no answer: [^\n]*$"):
        records.make("views/1", 1)


if __name__ == "__main__":
  absltest.main()
