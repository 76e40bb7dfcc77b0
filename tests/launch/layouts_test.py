"""Nodes of several devices, and nodes that run one program; each run in processes of its own."""

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


@samples.only_all
class ProgramTest(commands.CommandCase):
  """Workers of one program are killed; a run without failures is computed meanwhile."""

  CHANGES = {
      "num_steps": 5,
      "model.options.num_blocks": 3,
      "pipeline.executor": "spmd",
      "pipeline.num_pipelines": 1,
      "pipeline.num_stages": 3,
      "pipeline.num_microbatches": 4,
  }

  def test_the_program_goes_on(self):
    faults = self.write_faults("1,0/1,9,kill", "2,,,join", "3,0/0,12,kill")
    self.finish(
        self.start("cluster", faults, workdir="killed"), self.start("train", workdir="whole")
    )
    found, want = self.summary("killed"), self.summary("whole")
    self.assertEqual(found["state_sha256"], want["state_sha256"])
    self.assertEqual([r["rung"] for r in found["recoveries"]], ["shadow"] * 2)
    # Steps were finished, not repeated.
    logs = "".join(p.read_text() for p in (self.folder / "killed" / "logs").iterdir())
    self.assertRegex(logs, r"\d+ of 24 passes of share 0 are left")
