"""Files that say which nodes die."""

from absl.testing import absltest
from absl.testing import parameterized

from bamboo_jax.faults import fault_file

Fault = fault_file.Fault


def parse(text):
  return fault_file.parse_faults(text, source="faults.csv")


class ParseFaultsTest(parameterized.TestCase):

  def test_file(self):
    text = """
# Two deaths at once, then one in the middle of the update.
step,node,at,kind
12,0/3,17,kill

12, 1/0, 0, kill
13,0/3,apply,kill
"""
    faults = parse(text)
    self.assertEqual(
        faults,
        (
            Fault(step=12, pipeline=0, stage=3, at=17),
            Fault(step=12, pipeline=1, stage=0, at=0),
            Fault(step=13, pipeline=0, stage=3, at="apply"),
        ),
    )
    self.assertEqual(faults[0].place, "0/3")
    self.assertEqual(str(faults[2]), "13,0/3,apply,kill")
    self.assertEqual(parse("\n".join(map(str, faults))), faults)

  @parameterized.parameters("", "\n\n", "step,node,at,kind\n", "# nothing\n")
  def test_no_fault(self, text):
    self.assertEqual(parse(text), ())

  @parameterized.parameters(*fault_file.PHASES)
  def test_phases(self, phase):
    self.assertEqual(parse(f"0,0/0,{phase},kill")[0].at, phase)

  @parameterized.parameters(
      ("1,0/0,3", "line 1: a fault has 4 values, step,node,at,kind, got '1,0"),
      ("1,0/0,3,kill,4", "line 1: a fault has 4 values"),
      (
          "step,node,kind\n",
          "line 1: the columns must be step,node,at,kind, got",
      ),
      (
          "\n# a\n1,0/0,3,kil",
          "line 3: Unknown kind of fault 'kil'; did you mea",
      ),
      ("x,0/0,3,kill", "line 1: step must be a whole number from 0, got 'x'"),
      ("-1,0/0,3,kill", "line 1: step must be a whole number from 0, got '-1'"),
      ("1.5,0/0,3,kill", "got '1.5'"),
      ("1,3,3,kill", "node must be pipeline/stage, such as 0/2, got '3'"),
      ("1,0/-1,3,kill", "such as 0/2, got '0/-1'"),
      ("1,0/0,-1,kill", "from 0, or a phase .compute, ties, .*, got -1"),
      ("1,0/0,1.5,kill", "Unknown phase '1.5'"),
      ("1,0/0,,kill", "Unknown phase ''"),
      ("1,0/0,reduse,kill", "Unknown phase 'reduse'; did you mean 'reduce'?"),
      ("1,0/0,3,kill\nstep,node,at,kind", "line 2: step must be a whole numb"),
      (
          "2,0/1,3,kill\n1,0/1,3,kill\n2,0/1,apply,kill",
          "line 3: node 0/1 dies twice in step 2, the first time in line 1",
      ),
  )
  def test_refuses(self, text, message):
    with self.assertRaisesRegex(ValueError, f"^faults.csv, .*{message}"):
      parse(text)


class CheckFaultsTest(parameterized.TestCase):

  @parameterized.parameters(
      ("9,1/3,0,kill", None),
      ("10,1/3,0,kill", "step must be from 0 to 9, got 10"),
      ("9,2/3,0,kill", "pipeline must be from 0 to 1, got 2"),
      ("9,1/4,0,kill", "Fault 9,1/4,0,kill: stage must be from 0 to 3, got 4"),
  )
  def test_range(self, text, message):
    sizes = dict(num_steps=10, num_pipelines=2, num_stages=4)
    if message is None:
      fault_file.check_faults(parse(text), **sizes)
      return
    with self.assertRaisesRegex(ValueError, message):
      fault_file.check_faults(parse(text), **sizes)

  def test_a_fault_is_checked_when_built(self):
    with self.assertRaisesRegex(ValueError, "stage must be from 0, got -1"):
      Fault(step=0, pipeline=0, stage=-1, at=0)


if __name__ == "__main__":
  absltest.main()
