"""The files of a run in a bucket, and their copies on machines."""

import os
import pathlib
import tempfile
from unittest import mock
import uuid

from absl.testing import absltest, parameterized

from bamboo_jax.cluster import mirror
from tests import buckets


class MirrorTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.front, self.environ = buckets.open_s3(uuid.uuid4().hex)
    self.addCleanup(self.front.close)
    self.url = f"s3://{self.front.bucket}/a/run"
    self.enterContext(mock.patch.dict(os.environ, self.environ))

  def machine(self):
    """Makes this process one of another machine; returns the folder that it takes."""
    cache = self.enterContext(tempfile.TemporaryDirectory())
    self.enterContext(mock.patch.dict(os.environ, XDG_CACHE_HOME=cache))
    return mirror.take(self.url)

  def test_a_folder_is_its_own(self):
    self.assertEqual(mirror.local("runs/a"), pathlib.Path("runs/a"))
    self.assertEqual(mirror.take("runs/a"), pathlib.Path("runs/a"))
    self.assertEqual(mirror.look("runs/a"), pathlib.Path("runs/a"))

  def test_two_runs_have_two_folders(self):
    urls = ("s3://b/run", "s3://b/run2", "gs://b/run", "s3://b/a/run", "s3://b/a%2Frun")
    self.assertLen({mirror.local(url) for url in urls}, len(urls))
    self.assertEqual(mirror.local("s3://b/run/"), mirror.local("s3://b/run"))

  def test_all_have_the_secret_of_the_first(self):
    first, second = self.machine(), self.machine()
    self.assertNotEqual(first, second)
    secrets = {(folder / "secret").read_text() for folder in (first, second)}
    self.assertLen(secrets, 1)
    self.assertEqual((second / "secret").stat().st_mode & 0o777, 0o600)
    self.assertEqual((mirror.look(self.url) / "secret").stat().st_mode & 0o777, 0o600)

  def test_files_get_to_a_machine_that_has_none(self):
    folder = self.machine()
    (folder / "rows").mkdir()
    for name in ("metrics.jsonl", "summary.json", "rows/n0.json", "rows/n1.json", ".lock"):
      (folder / name).write_text(name)
    one = mirror.Mirror(self.url, folder)
    one.push("n1")
    there = mirror.look(self.url)
    self.assertEqual(there.name, "run")
    self.assertCountEqual(os.listdir(there / "rows"), ["n1.json"])
    one.push()
    self.assertCountEqual(os.listdir(self.machine()), os.listdir(mirror.look(self.url)))
    for name in ("metrics.jsonl", "summary.json", "rows/n0.json"):
      self.assertEqual((mirror.look(self.url) / name).read_text(), name)
    num_puts = self.front.counts["PUT"]
    (folder / "summary.json").write_text("another")
    one.push()
    self.assertEqual(self.front.counts["PUT"], num_puts + 1)  # Only what has changed.

  # The log here and in the bucket, and which one is here afterwards.
  @parameterized.parameters(
      ("", "1\n", "1\n"),
      ("1\n", "1\n2\n", "1\n2\n"),
      ("1\n2\n", "1\n", "1\n2\n"),
      ("1\n3\n", "1\n2\n", "1\n2\n"),  # It was written here before another machine went on.
      ("1\n", "", "1\n"),
  )
  def test_the_longer_log_stays(self, here, there, kept):
    folder = self.machine()
    if there:
      (folder / "metrics.jsonl").write_text(there)
      mirror.Mirror(self.url, folder).push()
    other = self.machine()
    (other / "metrics.jsonl").write_text(here)
    did = mirror.Mirror(self.url, other).pull()
    self.assertEqual((other / "metrics.jsonl").read_text(), kept)
    self.assertEqual(did, here != kept)

  def test_nothing_is_there(self):
    with self.assertRaisesRegex(ValueError, f"^No run is at {self.url}.$"):
      mirror.look(self.url)
    self.url = "s3://missing/run"
    for call in (self.machine, lambda: mirror.look(self.url)):
      with self.assertRaisesRegex(OSError, "^s3://missing/run: there is no such bucket: .*$"):
        call()


if __name__ == "__main__":
  absltest.main()
