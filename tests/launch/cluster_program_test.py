"""Workers of one program are killed; what a run without failures comes to is computed meanwhile."""

from tests import samples
from tests.launch import commands


@samples.only_all
class ProgramTest(commands.CommandCase):

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
