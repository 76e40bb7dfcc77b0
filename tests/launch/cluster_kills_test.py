"""Workers are killed and replaced; takes about two minutes of two cores.

What a run without failures comes to is computed in another process meanwhile.
"""

from tests.launch import commands


@commands.needs_etcd
class KillsTest(commands.CommandCase):

  CHANGES = {
      "num_steps": 13,
      "pipeline.num_pipelines": 2,
      "pipeline.num_stages": 2,
      "pipeline.num_microbatches": 4,
      "pipeline.num_shares": 8,
      "pipeline.layout": "templates",
      "recovery.reroute": "shares",
      "redundancy.spares": 1,  # So that one pipeline is deeper.
      "model.options.num_blocks": 2,
  }

  def test_random_kills(self):
    self.finish(
        self.start(
            "cluster",
            "--random_kills=3",
            "--zones=a,b",
            "--config.pipeline.link=host",
            workdir="killed",
        ),
        self.start("train", workdir="whole"),
    )
    killed, whole = self.summary("killed"), self.summary("whole")
    for key in ("state_sha256", "samples_seen"):
      self.assertEqual(killed[key], whole[key])
    rungs = [r["rung"] for r in killed["recoveries"]]
    self.assertEqual(rungs, ["shadow"] * 3)
    self.assertEqual(commands.processes_that_name(str(self.folder)), [])


@commands.needs_etcd
class StatisticsTest(commands.CommandCase):
  """The same with batch statistics and images."""

  CHANGES = {
      "num_steps": 6,
      "model.name": "resnet",
      "model.options": {
          "variant": "tiny",
          "depths": [1],
          "width": 4,
          "image_size": 8,
      },
      "data.name": "stripes",
      "pipeline.num_pipelines": 1,
      "pipeline.num_stages": 2,
      "pipeline.num_microbatches": 2,
  }

  def test_a_random_kill(self):
    self.finish(
        self.start("cluster", "--random_kills=1", workdir="killed"),
        self.start("train", "--config.pipeline.link=host", workdir="whole"),
    )
    killed, whole = self.summary("killed"), self.summary("whole")
    self.assertEqual(killed["state_sha256"], whole["state_sha256"])
    self.assertLen(killed["recoveries"], 1)
