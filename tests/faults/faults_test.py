"""Files of faults, and when the faults of a step are due."""

from absl.testing import absltest, parameterized

from bamboo_jax.base import types
from bamboo_jax.faults import faults as faults_lib
from tests import folders, tables

Fault = faults_lib.Fault
_OWNERS = {types.Place(i // 2, i % 2): i for i in range(4)}


# Lines of a file, and the error.
_MISTAKES = r"""
1,0/0,3
  line 1: a fault has 4 values, step,node,at,kind, got '1,0
1,0/0,3,kill,4
  line 1: a fault has 4 values
step,node,kind\n
  line 1: the columns must be step,node,at,kind, go
\n# a\n1,0/0,3,kil
  line 3: Unknown kind of fault 'kil'; did you me
x,0/0,3,kill
  line 1: step must be a non-negative integer, got 'x'
-1,0/0,3,kill
  line 1: step must be a non-negative integer, got '-1'
1.5,0/0,3,kill
  got '1.5'
1,3,3,kill
  pipeline/stage, such as 0/2, got '3'
1,0/-1,3,kill
  such as 0/2, got '0/-1'
1,0/0,-1,kill
  at least 0, or a phase .compute, ties, .*, got -1
1,0/0,1.5,kill
  Unknown phase '1.5'
1,0/0,reduse,kill
  Unknown phase 'reduse'; did you mean 'reduce'?
1,0/0,3,kill\nstep,node,at,kind
  line 2: step must be a non-negat
3,,,kill
  needs a node
3,n1,,slow:1
  factor of slow must be above 1, got 1
3,n1,,slow:5:3
  slow must end after step 3, got 3
3,n1,,slow:x
  slow:FACTOR:STEP, such as slow:5:20, got 'slow:x'
3,n1,,slow:5:
  got 'slow:5:'
3,0/1,6,slow
  slow begins with a step, got at=6
3,,,slow
  needs a node
3,n1,,leader
  takes no node
3,n1,6,kill
  needs a node written pipeline/stage
0,,,join
  from step 1 on
2,0/1,3,kill\n1,0/1,3,kill\n2,0/1,apply,kill
  line 3: node 0/1 dies twice in step 2, the first time in line 1
"""


def parse(text):
  return faults_lib.parse_faults(text, source="faults.csv")


class ParseFaultsTest(folders.FolderCase):

  def test_file(self):
    text = """
# Two deaths at once, then one in the middle of the update.
step,node,at,kind
12,0/3,17,kill

12, 1/0, 0, kill
  13,0/3,apply,kill
14,1/0,reduce,node
15,n3,,stop
16,b,,zone
17,,,leader
18,,,join
19,,,all
19,1/1,,notice
19,0/1,,slow:5
"""
    faults = parse(text)
    self.assertEqual(
        [(f.line, f.step, f.node, f.at, f.kind, f.place) for f in faults],
        [
            (4, 12, "0/3", 17, "kill", (0, 3)),
            (6, 12, "1/0", 0, "kill", (1, 0)),
            (7, 13, "0/3", "apply", "kill", (0, 3)),
            (8, 14, "1/0", "reduce", "node", (1, 0)),
            (9, 15, "n3", None, "stop", None),
            (10, 16, "b", None, "zone", None),
            (11, 17, "", None, "leader", None),
            (12, 18, "", None, "join", None),
            (13, 19, "", None, "all", None),
            (14, 19, "1/1", None, "notice", (1, 1)),
            (15, 19, "0/1", None, "slow", (0, 1)),
        ],
    )
    self.assertEqual(str(faults[2]), "13,0/3,apply,kill")
    self.assertEqual(parse(faults_lib.render(faults)), faults)

  @parameterized.parameters(*tables.read(_MISTAKES))
  def test_refuses(self, text, message):
    with self.refuses_if(f"^faults.csv, .*{message}"):
      parse(text.replace(r"\n", "\n"))

  @parameterized.parameters(
      ("9,n7,,kill", ""),
      ("10,1/3,0,kill", "line 1: step must be from 0 to 9, got 10"),
      ("9,1/3,59,kill", ""),
      ("9,1/3,60,kill", "line 1: at must be from 0 to 59, got 60"),
      ("9,2/3,0,kill", "line 1: pipeline must be from 0 to 1, got 2"),
      ("9,1/4,,kill", "line 1: stage must be from 0 to 3, got 4"),
  )
  def test_range(self, text, message):
    sizes = dict(num_steps=10, num_pipelines=2, num_stages=4)
    with self.refuses_if(message and f"^f.csv, {message}"):
      faults_lib.check_faults(parse(text), num_instructions=60, source="f.csv", **sizes)

  def test_spreadsheets_begin_with_a_mark(self):
    path = self.folder / "faults.csv"
    path.write_text("step,node,at,kind\n2,0/1,3,kill\n", encoding="utf-8-sig")
    sizes = dict(num_steps=3, num_pipelines=1, num_stages=2, num_instructions=9)
    self.assertEqual(faults_lib.read_faults(str(path), **sizes), (Fault(2, "0/1", 3),))
    for nothing in ("", "# 2,0/1,3,kill\n\n", "step,node,at,kind\n"):
      self.assertEqual(parse(nothing), ())
      path.write_text(nothing)
      with self.refuses_if(f"^{path} has no fault; a line"):
        faults_lib.read_faults(str(path), **sizes)

  @parameterized.parameters(
      ("3,n3,,kill", ""),
      ("3,n4,,kill", "there is no node 'n4'; nodes are n0 to n3, or pipeline"),
      ("3,n4,,kill\n2,,,join", ""),
      ("3,n04,,kill\n2,,,join", "there is no node 'n04'; nodes are n0 to n4"),
      ("3,node,,notice", "there is no node 'node'"),
      ("3,0/7,,kill", ""),  # See `check_faults`.
      ("3,b,,zone", ""),
      ("3,c,,zone", "Unknown zone 'c'"),
      ("3,1/9,,zone", "Unknown zone '1/9'"),
      ("3,,,all\n4,n7,,kill", ""),  # New nodes begin.
      ("3,,,all\n4,n12,,kill", "no node 'n12'; nodes are n0 to n11"),
      ("3,0/0,,kill\n4,n4,,stop\n4,n1,,notice", "no node 'n4'"),
  )
  def test_nodes_and_zones(self, text, message):
    with self.refuses_if(message and f"^f.csv, line .: .*{message}"):
      faults_lib.check_nodes(parse(text), num_nodes=4, zones=("a", "b"), source="f.csv")

  def test_faults_that_never_happened(self):
    text = "1,0/0,,kill\n2,1/1,9,kill\n2,n3,,stop\n2,c,,zone\n9,0/0,,kill\n3,,,leader"
    find = lambda *happened, first, end: faults_lib.find_missed(
        parse(f"{text}\n1,,,join\n2,,,join"), happened, first=first, end=end, source="f.csv"
    )
    ends = (
        "2: 2,1/1,9,kill never happened: no live node owned 1/1 then.",
        "3: 2,n3,,stop never happened: no live node was n3, or the run ended before.",
        "4: 2,c,,zone never happened: no live node was in zone c, or the run ended before.",
        "6: 3,,,leader never happened: the run ended before.",
        "8: 2,,,join never happened: the run ended before.",
    )
    self.assertEqual(find(1, first=1, end=5), [f"warning: f.csv, line {end}" for end in ends])
    self.assertEqual(find(first=2, end=2), [])


class FaultsDueTest(absltest.TestCase):

  def make(self, text, hosted=range(4)):
    """Returns what is due in step 1 of pipelines 0-1 and 2-3."""
    return faults_lib.FaultsDue(parse(text), step=1, owners=_OWNERS, hosted=hosted)

  def test_at_instructions_of_the_owner(self):
    due = self.make("1,0/1,2,kill\n2,0/1,0,kill")
    found = [due.pop_at_instruction(node) for node in (1, 0, 1, 0, 0, 1, 1)]
    self.assertEqual([bool(f) for f in found], [False] * 5 + [True, False])
    self.assertEqual((found[5][0].owner, bool(due)), (1, False))
    self.assertFalse(self.make("1,0/1,0,kill", hosted=[0, 2, 3]))  # Of another process.

  def test_beyond_the_row_and_at_phases(self):
    due = self.make("1,0/0,99,kill\n1,1/1,compute,kill\n1,1/0,vote,kill")
    found = [
        [d.fault.node for d in due.pop_at_phase(phase)] for phase in ("compute", "ties", "vote")
    ]
    self.assertEqual(found, [["1/1"], ["0/0"], ["1/0"]])

  def test_any_time_is_due_once_in_every_process(self):
    text = "1,0/1,,kill\n1,,,all\n1,,,join"
    for hosted in ([0], [1, 2, 3]):
      due = self.make(text, hosted=hosted)
      found = due.pop_at_phase("compute")
      self.assertEqual([(d.fault.kind, d.owner) for d in found], [("kill", 1), ("all", None)])
      self.assertFalse(due)

  def test_every_process_knows_the_slow_nodes(self):
    text = "1,0/1,,slow:2.5:4\n1,n3,,slow\n2,0/1,,slow\n1,0/0,,kill"
    for hosted in ([0], [1, 2, 3]):
      due = self.make(text, hosted=hosted)
      self.assertEqual(
          [(d.fault.node, d.fault.factor, d.fault.until, d.owner) for d in due.slowed],
          [("0/1", 2.5, 4, 1), ("n3", 5.0, None, None)],
      )
