"""Clusters of other executors and rungs, with `--all`; `cluster_test` is the one of each run."""

from tests import samples
from tests.launch import commands

_ALONE = {"pipeline.num_pipelines": 1, "pipeline.num_microbatches": 4}


@samples.only_all
class WaitTest(commands.CommandCase):

  CHANGES = {
      **_ALONE,
      "num_steps": 6,
      "redundancy.mode": "none",
      "pipeline.num_stages": 2,
      "pipeline.layout": "templates",
      "recovery.fold": False,
      "checkpoint.every_steps": 2,
  }

  def test_the_others_wait_for_a_node(self):
    """Also those that are told by another node how to begin."""
    recoveries = self.compare(self.write_faults("3,,,leader", "5,,,join"))
    self.assertEqual([r["rung"] for r in recoveries], ["wait", "checkpoint"])

  def test_nobody_is_there_for_a_while(self):
    trace = self.folder / "trace.csv"
    nodes = "0,add,a/1\n0,add,a/2\n100,remove,a/1\n100,remove,a/2\n500,add,a/3\n900,add,a/4\n"
    trace.write_text(nodes)
    recoveries = self.compare(f"--trace={trace}")
    self.assertEqual([r["rung"] for r in recoveries], [])
    starts = (self.folder / "killed" / "nodes.jsonl").read_text()
    self.assertEqual(starts.count('"start"'), 4)


@samples.only_all
class TemplatesTest(commands.CommandCase):

  CHANGES = {
      "num_steps": 9,
      "pipeline.num_pipelines": 2,
      "pipeline.num_stages": 2,
      "pipeline.num_microbatches": 4,
      "pipeline.num_shares": 8,
      "pipeline.layout": "templates",
      "redundancy.spares": 1,  # So that one pipeline is deeper.
      "model.options.num_blocks": 2,
  }
  QUEUED_BYTES = 1 << 12  # Less than a layer: most values wait for the last.

  def test_random_kills(self):
    recoveries = self.compare("--random_kills=2", "--zones=a,b")
    self.assertEqual([r["rung"] for r in recoveries], ["shadow"] * 2)
