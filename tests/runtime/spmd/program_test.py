"""Programs of segments: their instructions, and their sums after a death between two segments."""

import itertools
import re
import types
from unittest import mock

from absl.testing import parameterized
import jax
import numpy as np

from bamboo_jax.accounting import account
from tests import samples
from tests.runtime.spmd import pipelines

# Each victim after each number of segments.
_DEATHS = [*itertools.product(range(3), range(5))]


def find_operands(text):
  """Returns the operands of each instruction of a text of HLO, by its name."""
  found = re.findall(r"^\s+(?:ROOT )?%?([\w.-]+) = (.*)$", text, re.M)
  names = {name for name, _ in found}
  words = lambda line: re.findall(r"[\w.-]+", line)
  return {name: names.intersection(words(line)) for name, line in found}


def find_ancestors(operands, name):
  """Returns all that an instruction waits for."""
  found, queue = set(), [name]
  while queue:
    new = operands[queue.pop()] - found
    found |= new
    queue += new
  return found


class DeathTest(parameterized.TestCase):

  def test_without_a_death_sums_have_the_bits_of_rows(self):
    # As units are blocks, and every program is compiled alike.
    want = pipelines.make_three().sums_of_rows()
    self.assertLen(want, 2 * len(pipelines.make_three().spec.units))
    self.assertEmpty(pipelines.find_unequal(pipelines.undisturbed(), want))

  def test_programs_of_roles_now_and_after_a_death(self):
    made = pipelines.make_three()
    lines = made.rows.lines
    # Each pipeline at first, after the death of each node, and after one elsewhere.
    self.assertLen(made.programs.jobs(lines), 2 * (1 + 3 + 1))
    self.assertLen(made.programs.jobs([*lines]), 2 * (1 + 1))  # Those of another view.

  def test_time_outside_of_segments_is_that_of_a_restart_if_there_was_one(self):
    made = pipelines.make_three()
    made.begin()
    made.advance()
    plan = types.SimpleNamespace(passes=lambda secs: account.NodeTime(useful=secs))
    self.assertGreater(ran_secs := made.programs._ran_secs, 0.0)
    for num_starts, restart in ((3, 0.0), (4, 2.0)):
      ring = types.SimpleNamespace(num_starts=num_starts)
      with mock.patch.multiple(made.programs, _plan=plan, _processes=ring, _num_starts=3):
        found = made.programs.planned_passes(ran_secs + 2.0)
      self.assertAlmostEqual(found.useful, ran_secs)
      self.assertAlmostEqual(found.restart, restart)

  def test_sums_in_host_memory_compile_nothing(self):
    """As those that a child has computed."""
    want, made = pipelines.undisturbed(), pipelines.make_three()
    made.begin()
    made.advance()
    for run in made.programs.runs.values():
      on_host = {n: jax.tree.map(np.asarray, run.segments.sums(n)) for n in range(len(run.nodes))}
      self.enterContext(mock.patch.object(run.segments, "sums", on_host.get))
    events = pipelines.count_compilations()
    self.assertEmpty(pipelines.find_unequal(made.sums(), want))
    self.assertEmpty(events)

  @parameterized.parameters(*samples.draw(_DEATHS, 3))
  def test_sums_keep_their_bits(self, victim, num_segments):
    want, made = pipelines.undisturbed(), pipelines.make_three()
    events = pipelines.count_compilations()
    made.begin()
    made.advance(num_segments)
    # The programs that the victim was part of are of no use any more.
    poisoned = RuntimeError("A peer has died.")
    program = made.programs.runs[0].program
    with mock.patch.object(program, "segment", side_effect=poisoned):
      made.die(victim)
      made.advance()
    self.assertEmpty(pipelines.find_unequal(made.sums(), want))
    self.assertEmpty(events)
    if num_segments == 4:  # Backward passes from residuals in host memory.
      kept = [key for n in (0, 1) for key in made.programs.runs[0].table.fetches(n)]
      self.assertGreaterEqual([stage for stage, _ in kept].count(victim), 3)

  @parameterized.parameters((0, 2), (2, 1))
  def test_sums_of_a_child_that_has_left_nothing(self, victim, lost):
    """They are not computed again, and so not added twice."""
    want, made = pipelines.undisturbed(), pipelines.make_three()
    made.begin()
    made.advance()
    segments = made.programs.runs[0].segments
    read, sums = segments.read, {n: segments.sums(n) for n in range(3)}
    with mock.patch.multiple(
        segments, read=lambda n: None if n == lost else read(n), sums=sums.get
    ):
      made.die(victim)
    made.advance()
    self.assertEmpty(pipelines.find_unequal(made.sums(), want))

  def test_shadows_leave_the_head_to_recovery(self):
    made = pipelines.make_three()
    made.begin()
    made.advance()
    run = made.programs.runs[0]
    made.programs.holdings(is_begun=True)
    self.assertNotEmpty([k for k in made.rows.nodes[1].store.saved if k[0] == 2])
    for node, has_loss in ((1, False), (2, True)):  # Shadow and owner.
      sums = run.segments.sums(node)
      self.assertEqual(any(map(jax.numpy.any, jax.tree.leaves(sums.epilogue))), has_loss)

  @parameterized.parameters(
      # Who died in steps before; who dies after which number of segments.
      ([], [(2, 2), (1, 0)], [3, 1, 1, 3]),
      ([2], [(3, 1)], [0, 0, 0, 3]),
      ([1], [(3, 0)], [3, 3, 2, 3]),
      ([1, 0], [(3, 3)], [2, 2, 2, 2]),
  )
  def test_nodes_own_any_number_of_stages(self, dead, deaths, owners):
    made, want = pipelines.make_four()
    with pipelines.quick_compilation():
      made.begin(dead=dead)
      for num_segments, victim in deaths:
        made.advance(num_segments)
        made.die(victim)
      made.advance()
    self.assertEqual(made.programs.runs[0].owners, (*owners,))
    self.assertEmpty(pipelines.find_unequal(made.sums(), want))


class ProgramTest(parameterized.TestCase):
  """What programs are made of."""

  def make_program(self):
    """Returns the program of a pipeline of three stages."""
    made = pipelines.make_three()
    made.begin()
    return made.programs.runs[0].program

  def test_does_not_call_the_host(self):
    text = self.make_program().segment.as_text()
    for word in ("callback", "custom-call", "infeed", "outfeed", " send("):
      self.assertNotIn(word, text)
    self.assertIn("collective-permute", text)
    inside = text.split("ENTRY")[0]
    self.assertIn("S(5)", inside)  # Host memory, not only at the end.

  def test_buffers_are_not_copied(self):
    program = self.make_program()
    # Where the program begins and ends, what it has been given stays.
    text = program.segment.as_text().split("ENTRY")[0]
    for array in jax.tree.leaves(program.carry.residuals):
      shape = re.escape(str(list(array.shape)).replace(" ", ""))
      self.assertNotEmpty(re.findall(rf"= \w+{shape}\S* \w+", text))
      self.assertEmpty(re.findall(rf"= \w+{shape}\S* copy\(", text))

  def test_nothing_is_sent_before_the_passes_of_a_tick(self):
    program = self.make_program()
    text = program.segment.as_text()
    (body,) = (part for part in re.split(r"^}", text, flags=re.M) if " collective-permute(" in part)
    operands = find_operands(body)
    sent = re.findall(r"([\w.-]+) = \S+ collective-permute\(", body)
    self.assertGreaterEqual(len(sent), 2)  # Both ways.
    found = re.findall(r"([\w.-]+) = (.*) while\(", body)
    self.assertLen(found, 3)
    copied = str([*jax.tree.leaves(program.host.residuals)[0].shape]).replace(" ", "")
    loops = {name for name, shapes in found if copied not in shapes}
    self.assertLen(loops, 2)  # Forward passes, the backward pass; no copies.
    for name in sent:
      self.assertContainsSubset(loops, find_ancestors(operands, name))

  def test_devices(self):
    with self.assertRaisesRegex(ValueError, "each of 2 nodes, got 1"):
      pipelines.Pipelines(2, num_devices=1)
