"""A run whose workdir others take over, and others that find it at work."""

import threading
import time

from bamboo_jax import base
from bamboo_jax.cluster.store import fence as fence_lib, tenure
from bamboo_jax.metrics import jsonl
from bamboo_jax.train import run
from tests import folders, tiny


class TakenTest(folders.FolderCase):

  def test_it_ends_before_it_writes(self):
    workdir = self.folder / "a"
    metrics, fence = workdir / "metrics.jsonl", fence_lib.Fence(workdir)
    seen = []

    def take():
      end_secs = time.monotonic() + 120
      while time.monotonic() < end_secs:
        if metrics.exists() and b'"loss"' in metrics.read_bytes():
          break
        time.sleep(0.001)
      seen.append(fence.read()[0])
      fence.replace("agent")
      seen.append(len(jsonl.read_lines(metrics)))

    taker = threading.Thread(target=take)
    taker.start()
    config = tiny.make_config(num_steps=100_000, checkpoint__every_steps=0)
    with self.assertRaisesRegex(base.FencedError, "now belongs to another run"):
      run.train_and_evaluate(config, workdir=str(workdir))
    taker.join()
    self.assertTrue(tenure.is_alone(seen[0]))
    # At most one step had been voted for by then.
    self.assertLess(len(jsonl.read_lines(metrics)), seen[1] + 2)
    self.assertFalse((workdir / "summary.json").exists())
    self.assertEmpty([*(workdir / "checkpoints").glob("*")])
    self.assertEqual(fence.read()[0], fence_lib.Claim("agent"))

  def test_one_that_has_ended_keeps_nobody_waiting(self):
    workdir = self.folder / "a"
    config = tiny.make_config(num_steps=2)
    run.train_and_evaluate(config, workdir=str(workdir), stop_at=1)
    self.assertEqual(fence_lib.Fence(workdir).read(), (None, 0))
    self.assertTrue(run.train_and_evaluate(config, workdir=str(workdir)))
