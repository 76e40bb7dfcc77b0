"""A run whose workdir others take over, and others that find it at work."""

import threading
import time

from bamboo_jax import base
from bamboo_jax.cluster import judge, records as records_lib, views
from bamboo_jax.net import identity
from bamboo_jax.training import run
from tests import folders, tiny


class TakenTest(folders.FolderCase):

  def open(self, workdir):
    key = identity.find_entry_key((workdir / "secret").read_bytes())
    return records_lib.Records(workdir, key)

  def test_it_ends_before_it_writes(self):
    workdir = self.folder / "a"
    metrics = workdir / "metrics.jsonl"
    seen = []

    def take():
      end_secs = time.monotonic() + 120
      while time.monotonic() < end_secs:
        if metrics.exists() and b'"loss"' in metrics.read_bytes():
          break
        time.sleep(0.001)
      records = self.open(workdir)
      view = judge.newest_view(records)
      begun = views.begin_run(view, "an agent begins")
      seen.extend([view, judge.make_view(records, view, begun) == begun])

    taker = threading.Thread(target=take)
    taker.start()
    config = tiny.make_config(num_steps=100_000, checkpoint__every_steps=0)
    with self.assertRaisesRegex(base.FencedError, "now belongs to another run"):
      run.train_and_evaluate(config, workdir=str(workdir))
    taker.join()
    self.assertTrue(judge.is_alone(seen[0]))
    self.assertTrue(seen[1])
    self.assertFalse((workdir / "summary.json").exists())
    self.assertEmpty([*(workdir / "checkpoints").glob("*")])

  def test_one_that_has_ended_keeps_nobody_waiting(self):
    workdir = self.folder / "a"
    config = tiny.make_config(num_steps=2)
    run.train_and_evaluate(config, workdir=str(workdir), stop_at=1)
    newest = judge.newest_view(self.open(workdir))
    self.assertEqual((newest.number, newest.members), (2, ()))
    self.assertTrue(run.train_and_evaluate(config, workdir=str(workdir)))
