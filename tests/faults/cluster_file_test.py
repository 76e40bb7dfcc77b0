"""Fault files of clusters."""

from absl.testing import absltest
from absl.testing import parameterized

from bamboo_jax.faults import cluster_file

parse = cluster_file.parse_cluster_faults


class ClusterFileTest(parameterized.TestCase):

  def test_lines(self):
    text = """# comment
    step,node,at,kind
    3,0/1,6,kill
    4,1/0,reduce,node

    5,n3,,stop
    6,b,,zone
    7,,,leader
    8,,,join
    9,,,all
    9,1/1,,notice
    """
    got = [
        (f.line, f.step, f.node, f.at, f.kind, f.place)
        for f in parse(text, source="f.csv")
    ]
    self.assertEqual(
        got,
        [
            (3, 3, "0/1", 6, "kill", (0, 1)),
            (4, 4, "1/0", "reduce", "node", (1, 0)),
            (6, 5, "n3", None, "stop", None),
            (7, 6, "b", None, "zone", None),
            (8, 7, "", None, "leader", None),
            (9, 8, "", None, "join", None),
            (10, 9, "", None, "all", None),
            (11, 9, "1/1", None, "notice", (1, 1)),
        ],
    )

  @parameterized.parameters(
      ("3,0/1,6", "a fault has 4 values"),
      ("x,0/1,6,kill", "step must be a whole number"),
      ("3,0/1,6,kil", "kill"),
      ("3,,,kill", "needs a node"),
      ("3,n1,,leader", "takes no node"),
      ("3,n1,6,kill", "needs a node written pipeline/stage"),
      ("3,0/1,redcue,kill", "reduce"),
      ("3,0/1,-1,kill", "at must be"),
      ("0,,,join", "from step 1 on"),
  )
  def test_bad_line(self, line, problem):
    with self.assertRaisesRegex(ValueError, f"^f.csv, line 2: .*{problem}"):
      parse(f"1,0/0,0,kill\n{line}\n", source="f.csv")

  @parameterized.parameters(
      ("9,0/0,0,kill", "step must be from 0 to 8, got 9"),
      ("1,2/0,0,kill", "pipeline must be from 0 to 1, got 2"),
      ("1,0/2,,kill", "stage must be from 0 to 1, got 2"),
  )
  def test_out_of_range(self, line, problem):
    with self.assertRaisesRegex(ValueError, f"f.csv, line 1: {problem}"):
      cluster_file.check_cluster_faults(
          parse(line, source="f.csv"),
          num_steps=9,
          num_pipelines=2,
          num_stages=2,
          source="f.csv",
      )


if __name__ == "__main__":
  absltest.main()
