"""Faults that are put back in on purpose still find the code they change."""

import pathlib

from absl.testing import parameterized

from tests.explorer import mutants

_ROOT = pathlib.Path(__file__).parents[2]


class MutantsTest(parameterized.TestCase):

  @parameterized.parameters(*mutants.MUTANTS)
  def test_the_code_is_there_once(self, name):
    _, *edits = mutants.MUTANTS[name]
    for path, text, fault in edits:
      self.assertEqual((_ROOT / path).read_text().count(text), 1, msg=path)
      self.assertNotEqual(text, fault)
