"""Nodes of several devices; four small runs, each in a process of its own."""

from tests import samples
from tests.launch import commands

_TWO = "--config.node.mesh.data=2"
# Eight devices too, for one pipeline with the same batch.
_FOUR = (
    _TWO,
    "--config.node.mesh.tensor=2",
    "--config.pipeline.num_pipelines=1",
    "--config.pipeline.num_microbatches=4",
    "--config.pipeline.num_shares=2",
)


@samples.only_all
class MeshTest(commands.CommandCase):

  CHANGES = {
      "num_steps": 3,
      "pipeline.num_pipelines": 2,
      "pipeline.num_stages": 2,
      "pipeline.num_microbatches": 2,
  }

  def test_losses_and_bits(self):
    faults = self.write_faults("1,0/1,3,kill", "2,1/0,reduce,kill")
    self.finish(self.start("train", workdir="one"), self.start("train", _TWO, workdir="two"))
    self.finish(
        self.start("train", *_FOUR, workdir="four"),
        self.start("train", _TWO, faults, workdir="killed"),
    )
    one, two, four, killed = map(self.summary, ("one", "two", "four", "killed"))
    loss = one["final_loss"]
    for other in (two, four):
      self.assertAlmostEqual(loss, other["final_loss"], delta=1e-6 * loss)
      self.assertNotEqual(one["state_sha256"], other["state_sha256"])
    self.assertEqual(two["state_sha256"], killed["state_sha256"])
    self.assertLen(killed["recoveries"], 2)
