"""The files of a run in a bucket, and their copies on machines."""

import contextlib
import datetime
import os
import pathlib
import tempfile
import types
from unittest import mock
import uuid

from absl.testing import parameterized

from bamboo_jax.cluster import mirror, records
from bamboo_jax.launch import cli
from bamboo_jax.metrics import jsonl
from bamboo_jax.runtime import program_store
from bamboo_jax.training.record import workdir as workdir_lib
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
    # With the last two another machine goes on.
    files = ("metrics.jsonl", "summary.json", "rows/n0.json", "metrics.csv", "wandb_id")
    for name in (*files, "rows/n1.json", ".lock"):
      (folder / name).write_text(name)
    one = mirror.Mirror(self.url, folder)
    one.push("n1", is_writer=False)
    there = mirror.look(self.url)
    self.assertEqual(there.name, "run")
    self.assertCountEqual(os.listdir(there / "rows"), ["n1.json"])
    one.push()
    self.assertCountEqual(os.listdir(self.machine()), os.listdir(mirror.look(self.url)))
    for name in files:
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

  # What has become of the secret in the bucket; and whether files of the run here stay.
  @parameterized.parameters(("same", True), ("gone", False), ("another", False))
  def test_files_of_a_former_run_are_not_of_the_next(self, now, stays):
    folder = self.machine()
    (folder / "programs").mkdir()
    (folder / "rows").mkdir()
    for name in ("metrics.jsonl", "summary.json", "control.json", "rows/n0.json", "programs/a"):
      (folder / name).write_text("former")
    secret = (folder / "secret").read_bytes()
    bucket = records.Bucket(self.url)
    if now != "same":
      bucket.delete("secret")
    if now == "another":
      bucket.put("secret", b"5a" * 32)
    self.assertEqual(mirror.take(self.url), folder)
    self.assertEqual((folder / "secret").read_bytes(), bucket.read("secret"))
    self.assertEqual((folder / "secret").read_bytes() == secret, stays)
    self.assertEqual((folder / "programs/a").read_text(), "former")
    for name in ("metrics.jsonl", "summary.json", "control.json", "rows/n0.json"):
      self.assertEqual((folder / name).exists(), stays)

  def test_a_log_that_is_written_here_is_not_replaced(self):
    folder, first = self.machine(), records.Bucket(self.url)
    first.put("metrics.jsonl", b"1\n2\n")
    with contextlib.closing(jsonl.MetricsWriter(folder / "metrics.jsonl", locks=True)) as writer:
      writer.write_step(1, {})
      here = (folder / "metrics.jsonl").read_bytes()
      mirror.take(self.url)  # Another agent starts on this machine.
      self.assertEqual((folder / "metrics.jsonl").read_bytes(), here)
      secret = first.read("secret")
      first.delete("secret")
      with self.assertRaisesRegex(ValueError, f"writes to {folder}, but {self.url} was emptied"):
        mirror.take(self.url)
      self.assertEqual((folder / "metrics.jsonl").read_bytes(), here)
      first.put("secret", secret)
    self.assertTrue(mirror.Mirror(self.url, folder).pull())

  @parameterized.parameters((b"1\n", True), (b"1\n2\n", False))
  def test_no_log_is_put_over_one_that_could_not_be_read(self, there, is_put):
    folder, bucket = self.machine(), records.Bucket(self.url)
    bucket.put("metrics.jsonl", there)
    with mock.patch.object(mirror, "_TIMEOUT", datetime.timedelta(milliseconds=200)):
      one = mirror.Mirror(self.url, folder)
    self.front.fail(*["503"] * 99, method="GET")
    with self.assertRaisesRegex(OSError, "no answer"):
      one.pull()
    self.front.fail_no_more()
    with contextlib.closing(jsonl.MetricsWriter(folder / "metrics.jsonl", locks=True)):
      (folder / "metrics.jsonl").write_bytes(b"1\n3\n")
      for _ in range(2):
        with contextlib.nullcontext() if is_put else self.assertRaisesRegex(OSError, "lines"):
          one.push()
    self.assertEqual(bucket.read("metrics.jsonl"), b"1\n3\n" if is_put else there)

  def test_rows_are_those_of_the_members_of_now(self):
    folder, bucket = self.machine(), records.Bucket(self.url)
    (folder / "rows").mkdir()
    for name in ("n0", "n1", "planned"):
      (folder / f"rows/{name}.json").write_text("old")  # Perhaps fetched at the start.
      bucket.put(f"rows/{name}.json", b"new")
    mirror.Mirror(self.url, folder).push("n0")
    found = {key: bucket.read(key) for key in bucket.keys("rows")}
    names = {"rows/n0.json": b"old", "rows/n1.json": b"new", "rows/planned.json": b"old"}
    self.assertEqual(found, names)
    mirror.Mirror(self.url, folder).clear_rows()
    self.assertEmpty(bucket.keys("rows"))

  def test_compiled_programs_get_to_a_machine_that_has_none(self):
    first, second, third = (
        program_store.ProgramStore(str(self.machine() / "programs")) for _ in range(3)
    )
    put = lambda store, key, data: store.save(key, types.SimpleNamespace(serialize=lambda: data))
    wheres = [workdir_lib.Workdir.at(self.url) for _ in range(3)]
    for where, store in zip(wheres[:2], (first, second), strict=True):
      where.share_programs(store)
    put(first, "aa", b"program")
    put(first, "bb", b"another")
    for where in wheres[:2]:
      where.push_last("")
    self.assertIsNone(second.load("aa", bytes))  # It has looked before.
    wheres[1].share_programs(second)
    self.assertEqual(second.load("aa", bytes), b"program")
    put(second, "cc", b"of it")
    before = self.front.counts["PUT"]
    for _ in range(2):
      wheres[1].push_last("")
    self.assertEqual(self.front.counts["PUT"], before + 1)
    wheres[2].share_programs(third)
    self.assertEqual([third.load(key, bytes) for key in ("cc", "dd")], [b"of it", None])
    # It compiles what it does not get, and goes on.
    self.enterContext(mock.patch.object(workdir_lib, "_TIMEOUT", datetime.timedelta(seconds=0.1)))
    wheres[2].share_programs(third)
    self.front.fail(*["503"] * 99, method="GET")
    put(third, "dd", b"new")
    with self.assertLogs(level="WARNING"), self.front.failing("503"):
      self.assertIsNone(third.load("bb", bytes))
      wheres[2].push_last("")
      wheres[2].share_programs(third)
    put(third, "bb", b"compiled here")

  def test_a_copy_ends_with_its_command(self):
    self.machine()
    there = mirror.look(self.url)
    with mock.patch.object(os, "_exit", side_effect=SystemExit), self.assertRaises(SystemExit):
      cli.fail("interrupted", 130)
    self.assertFalse(there.parent.exists())

  def test_nothing_is_there(self):
    with self.assertRaisesRegex(ValueError, f"^No run is at {self.url}.$"):
      mirror.look(self.url)
