"""A cluster of real processes under a trace; takes most of half a minute."""

from absl.testing import parameterized

from tests.launch import commands

# The only node of its zone goes, which has a place for sure; another comes.
_TRACE = """0,add,a/1
0,add,b/1
0,add,b/2
1000,remove,a/1
2000,add,c/1
600000,remove,b/1
"""


class ClusterTraceTest(commands.CommandCase):

  CHANGES = {
      "num_steps": 20,
      "pipeline.num_pipelines": 1,
      "pipeline.num_stages": 2,
      "pipeline.num_microbatches": 2,
      "evaluate.every_steps": 20,
      "evaluate.num_microbatches": 1,
  }
  HELD_FROM = 2  # And to the end, so that the trace comes first.

  def setUp(self):
    super().setUp()
    (self.folder / "trace.csv").write_text(_TRACE)
    (self.folder / "faults.csv").write_text("3,0/1,6,kill\n")

  def run_cluster(self, *arguments):
    return commands.fork(
        *("-m", "launch.cluster", f"--config={self.config}"),
        f"--workdir={self.folder}/run",
        *(a.replace("FOLDER", str(self.folder)) for a in arguments),
    )

  @commands.needs_etcd
  def test_replay(self):
    done = self.run_cluster("--trace=FOLDER/trace.csv", "--time_scale=10")
    self.assertEqual(done.returncode, 0, msg=done.stdout + done.stderr)
    said = done.stdout.splitlines()
    self.assertIn("trace at_secs=0.1 remove=n0 node=a/1", said)
    self.assertIn("trace at_secs=0.2 add=n3 node=c/1", said)
    death = "Node n0: its agent was killed by SIGKILL. 2 of 3 nodes are left; "
    (line,) = (line for line in said if line.startswith(death))
    self.assertRegex(line, r"worker: pid \d+, log .*/logs/n0\.log$")
    self.assertContainsSubset({"eval_step=20"}, {l.split()[0] for l in said})
    self.assertLess(
        [line.startswith("step=1 ") for line in said].index(True),
        said.index("trace at_secs=0.1 remove=n0 node=a/1"),
    )
    summary = self.summary()
    self.assertEqual(summary["steps"], 20)
    (recovery,) = summary["recoveries"]
    self.assertEqual(recovery["rung"], "shadow")
    # It was killed by the launcher, which knows when.
    self.assertGreater(recovery["kill_to_step_end_secs"], 0.0)
    self.assertGreater(recovery["detect_secs"], 0.0)
    self.assertBetween(recovery["silence_to_view_secs"], recovery["detect_secs"] - 0.2, 10.0)

  @commands.needs_etcd
  def test_nobody_is_there_for_a_while(self):
    trace = self.folder / "trace.csv"
    trace.write_text(
        "0,add,a/1\n0,add,a/2\n100,remove,a/1\n100,remove,a/2\n" "500,add,a/3\n900,add,a/4\n"
    )
    recoveries = self.compare(f"--trace={trace}")
    self.assertEqual([r["rung"] for r in recoveries], [])
    starts = (self.folder / "killed" / "nodes.jsonl").read_text()
    self.assertEqual(starts.count('"start"'), 4)

  @parameterized.parameters(
      (["--trace=FOLDER/no.csv"], "no.csv: No such file"),
      (
          ["--trace=FOLDER/trace.csv", "--faults=FOLDER/faults.csv"],
          "Give one of --faults and --trace, not both",
      ),
      (["--time_scale=60"], "--time_scale has no effect without --trace."),
      (["--kinds=hang", "--seed=3"], "--kinds and --seed have no effect without --random_kills."),
      (["--trace=FOLDER/trace.csv", "--time_scale=0"], "time_scale must be above 0, got 0.0"),
      (
          ["--trace=FOLDER/trace.csv", "--nodes=1"],
          "need at least 2 nodes, got a trace that starts with 1",
      ),
  )
  def test_bad_input(self, arguments, problem):
    done = self.run_cluster(*arguments)
    self.assertEqual(done.returncode, 2)
    self.assertIn(problem, done.stderr)
    self.assertFalse((self.folder / "run").exists())
