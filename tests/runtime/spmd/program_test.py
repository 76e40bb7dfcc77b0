"""What programs are made of, and what they cannot be made of."""

import re

from absl.testing import absltest
import jax

from tests.runtime.spmd import pipelines


def make_program():
  """Returns the program of a pipeline of three stages."""
  made = pipelines.make_three()
  made.begin()
  return made.programs.runs[0].program


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


class ProgramTest(absltest.TestCase):

  def test_does_not_call_the_host(self):
    text = make_program().segment.as_text()
    for word in ("callback", "custom-call", "infeed", "outfeed", " send("):
      self.assertNotIn(word, text)
    self.assertIn("collective-permute", text)
    inside = text.split("ENTRY")[0]
    self.assertIn("S(5)", inside)  # Host memory, not only at the end.

  def test_buffers_are_not_copied(self):
    program = make_program()
    # Where the program begins and ends, what it has been given stays.
    text = program.segment.as_text().split("ENTRY")[0]
    for array in jax.tree.leaves(program.carry.residuals):
      shape = re.escape(str(list(array.shape)).replace(" ", ""))
      self.assertNotEmpty(re.findall(rf"= \w+{shape}\S* \w+", text))
      self.assertEmpty(re.findall(rf"= \w+{shape}\S* copy\(", text))

  def test_nothing_is_sent_before_the_passes_of_a_tick(self):
    program = make_program()
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


class MistakesTest(absltest.TestCase):

  def test_devices(self):
    with self.assertRaisesRegex(ValueError, "each of 2 nodes, got 1"):
      pipelines.Pipelines(2, num_devices=1)
