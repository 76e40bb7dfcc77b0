"""Workers are killed at random and replaced; takes a minute of two cores.

What a run without failures comes to is computed in another process meanwhile.
"""

from tests.launch import commands


@commands.needs_etcd
class KillsTest(commands.CommandCase):

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
