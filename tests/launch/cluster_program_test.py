"""Workers of one program are killed while it runs; takes about a minute.

What a run without failures comes to is computed in another process meanwhile.
"""

from tests.launch import commands


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
    faults = ("1,0/1,9,kill", "2,,,join", "3,0/0,12,kill")
    recoveries = self.compare(self.write_faults(*faults))
    self.assertEqual([r["rung"] for r in recoveries], ["shadow"] * 2)
