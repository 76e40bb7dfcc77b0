"""Workers of one program are killed while it runs; takes about a minute.

What a run without failures comes to is computed in another process meanwhile.
"""

from tests.launch import commands

_FAULTS = """step,node,at,kind
1,0/1,9,kill
2,,,join
3,0/0,12,kill
"""


@commands.needs_etcd
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
    faults = self.folder / "faults.csv"
    faults.write_text(_FAULTS)
    self.finish(
        self.start("cluster", f"--faults={faults}", workdir="killed"),
        self.start("train", workdir="whole"),
    )
    killed, whole = self.summary("killed"), self.summary("whole")
    self.assertEqual(killed["state_sha256"], whole["state_sha256"])
    recoveries = killed["recoveries"]
    self.assertEqual([r["rung"] for r in recoveries], ["shadow"] * 2)
    for redone in [r["redone"] for r in recoveries]:
      self.assertGreater(redone["from_host"], 0)
      self.assertLessEqual(redone["again"], redone["at_most"])
