"""Runs whose workdir is the URL of a bucket, on machines that are lost."""

import json
import os
import re
from unittest import mock
import uuid

from bamboo_jax.cluster import records
from tests import buckets
from tests.launch import commands

_FAULTS = ("503", "lost", "slow", "closed", "503_after")


class BucketTest(commands.CommandCase):
  """Each process of a test is told by `machine` which files it finds."""

  CHANGES = {
      "num_steps": 46,
      "checkpoint.every_steps": 2,
      "pipeline.num_pipelines": 1,
      "pipeline.num_stages": 2,
      "redundancy.mode": "none",
      "redundancy.spares": 1,
  }
  HELD_FROM = 3
  wanted = ""

  def setUp(self):
    super().setUp()
    self.front, self.environ = buckets.open_s3(uuid.uuid4().hex)
    self.addCleanup(self.front.close)
    self.url = f"s3://{self.front.bucket}/some/run"

  def start_on(self, machine, command, *arguments):
    """Starts a command on a machine that has only its own files."""
    self.ENVIRON = {**type(self).ENVIRON, **self.environ}
    self.ENVIRON["XDG_CACHE_HOME"] = str(self.folder / machine)
    return self.start_module(f"launch.{command}", *arguments)

  def train_on(self, machine, command="train", *arguments):
    given = (f"--config={self.config}", f"--workdir={self.url}", commands.PROGRAM_CACHE)
    return self.listen(self.start_on(machine, command, *given, *arguments))

  def saved(self):
    """Returns the step of the newest checkpoint of which the process has told, 0 without any."""
    told = r"(?m)^step \d+: uploaded step (\d+): [\d.]+ MiB in [\d.]+ s"
    found = re.findall(told, "\n".join(self.said))
    return max(map(int, found), default=0)

  def whole(self):
    """Returns the hash of a run in a folder, to which nothing happens; of one for all tests."""
    cls = type(self)
    if not cls.wanted:
      self.release()
      self.finish(self.start("train", commands.PROGRAM_CACHE, workdir="whole"))
      cls.wanted = self.summary("whole")["state_sha256"]
    return cls.wanted

  def test_an_empty_machine_goes_on_from_the_bucket(self):
    self.front.fail(*[fault for one in _FAULTS for fault in (one, "", "")])
    process = self.train_on("first")
    self.wait_for(self.saved, "checkpoint")
    said = self.said
    other = self.train_on("other")
    self.assertNotEqual(other.wait(), 0)
    self.assertRegex(self.said[-1], "^error: A run is under way in this workdir, of bamboo train")
    self.assertIsNone(process.poll(), msg=said)
    process.kill()
    process.wait()
    self.assertNotIn("done", "".join(said))
    self.release()
    self.front.fail(*[fault for one in _FAULTS for fault in (one, "")], method="GET")
    process = self.train_on("second")
    self.assertEqual(process.wait(), 0, msg=self.said)
    said = "\n".join(self.said)
    self.assertGreaterEqual(int(re.search(r"resumed_from_step=(\d+)", said)[1]), 2)
    self.assertIn(f"state_sha256={self.whole()}; next: bamboo report {self.url}", said)
    # A machine that only looks.
    (said,) = self.finish(self.start_on("third", "report", self.url, "--json"))
    (run,) = json.loads(said)["runs"]
    self.assertEqual(run["head"]["step"], 46)

  def test_before_the_first_checkpoint(self):
    with mock.patch.dict(os.environ, self.environ):
      records.Bucket(self.url).put("secret", b"5a" * 32)
    process = self.listen(self.start_on("any", "report", self.url))
    self.assertNotEqual(process.wait(), 0)
    self.assertStartsWith(self.said[-1], f"error: The run at {self.url} has no checkpoint yet")

  def test_a_cluster_goes_on_from_the_bucket(self):
    """The only copy of a stage is announced to end, then another one dies."""
    faults = ("6,0/1,5,notice", "12,0/1,5,kill")
    self.front.fail(*[fault for one in _FAULTS for fault in (one, *[""] * 5)])
    process = self.train_on("first", "cluster", self.write_faults(*faults))
    resumed = lambda: re.search(r"restoring step (\d+)", "\n".join(self.said))
    self.wait_for(resumed, "restart")
    self.release()
    self.assertEqual(process.wait(), 0, msg=self.said)
    self.assertGreaterEqual(int(resumed()[1]), 2, msg=self.said)
    told = r"step \d+: saving: (not yet, .*: )?[0-9.]+ MiB of the state are only on n\d, .* MiB/s, "
    self.assertRegex("\n".join(self.said), told)
    self.assertIn(f"state_sha256={self.whole()}", self.said)
    shown = self.start_on("third", "status", f"--workdir={self.url}")
    (said,) = self.finish(shown)
    self.assertIn("step=46 num_steps=46", said)
    self.assertRegex(said, r"uploaded step \d+: [\d.]+ MiB in [\d.]+ s, [\d.]+ MiB/s")
