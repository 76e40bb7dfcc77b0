"""Another user of the machine calls all sockets that a run listens on.

Takes some 20 s, as workers import JAX. The table of the listeners is in
`docs/guides/cluster.md`.
"""

import collections
import os
import signal
import time

from absl.testing import absltest

from bamboo_jax.cluster.store import fence as fence_lib
from tests import strangers
from tests.launch import commands

_NUM_NODES = 2
# What a stranger gets, and from how many.
_TABLE = {
    "agent": ("closed", _NUM_NODES),
    "worker: transport": ("closed", _NUM_NODES),
    "`bamboo cluster`: etcd, for clients": ("closed", 1),
    "`bamboo cluster`: etcd, for its peers": ("closed", 1),
    "`bamboo cluster`: faults": ("closed", 1),
}


@absltest.skipUnless(os.geteuid() == 0, "only root can become another user")
@commands.needs_etcd
class StrangersTest(commands.CommandCase):

  CHANGES = {
      "num_steps": 100_000,
      "pipeline.num_pipelines": 1,
      "pipeline.num_stages": 2,
      "pipeline.num_microbatches": 2,
      "redundancy.spares": 0,
  }

  def test_all_listeners_of_a_run(self):
    run = self.start("cluster", f"--nodes={_NUM_NODES}")
    log = self.folder / "run" / "metrics.jsonl"
    while not (log.exists() and b'"loss"' in log.read_bytes()):
      self.assertIsNone(run.poll())
      time.sleep(0.02)
    pids = strangers.find_descendants(run.pid)
    found = strangers.find_listeners(pids)
    said = {one: strangers.call(one) for one in found}
    for one in found:
      if one.kind == "tcp":
        for connection in strangers.hold(one.name, 20):
          self.addCleanup(connection.close)
    counts = collections.Counter()
    for answer, count in _TABLE.values():
      counts[answer] += count
    self.assertEqual(collections.Counter(said.values()), counts, msg=said)
    page = commands.ROOT / "docs" / "guides" / "cluster.md"
    lines = page.read_text().splitlines()
    rows = [line.split(" | ")[0].removeprefix("| ") for line in lines]
    for name in _TABLE:
      self.assertIn(name, rows)
    # Nobody has ended because of it, and training goes on.
    before = log.read_bytes().count(b'"loss"')
    while log.read_bytes().count(b'"loss"') < before + 5:
      self.assertIsNone(run.poll())
      time.sleep(0.02)
    self.assertEqual(strangers.find_descendants(run.pid), pids)
    fence = fence_lib.Fence(self.folder / "run")
    views = fence.views_after(fence.read()[0].stamp, 0)
    self.assertLen(views, 1)
    run.send_signal(signal.SIGINT)
    run.communicate(timeout=60)
