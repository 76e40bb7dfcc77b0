"""What `python -m tests.explorer` says of its histories, and what its mutants change."""

import contextlib
import io
import pathlib

from absl.testing import parameterized

from tests.explorer import __main__ as explorer, mutants


class MainTest(parameterized.TestCase):

  def run_quietly(self, call, *args, **options):
    with contextlib.redirect_stdout(io.StringIO()) as said:
      status = call(*args, **options)
    return status, said.getvalue().splitlines()

  @parameterized.named_parameters(
      ("good", [[], []], False, 0, ["mode=net histories=2 violations=0"]),
      ("bad", [[], ["a"], ["b", "c"]], False, 1, [*"abc", "mode=net histories=3 violations=2"]),
      ("first", [[], ["a"], ["b"]], True, 1, ["a", "mode=net histories=2 violations=1"]),
  )
  def test_tell(self, histories, only_first, status, lines):
    found = self.run_quietly(explorer.tell, "net", histories, only_first=only_first)
    self.assertEqual(found, (status, lines))

  @parameterized.parameters("wire", "kill")
  def test_histories(self, mode):
    flags = [f"--mode={mode}", "--first_seed=7", "--seeds=11", "--num_processes=1"]
    found = self.run_quietly(explorer.main, flags)
    self.assertEqual(found, (0, [f"mode={mode} histories=11 violations=0"]))

  @parameterized.parameters(*mutants.MUTANTS)
  def test_the_code_of_a_mutant_is_there_once(self, name):
    _, *edits = mutants.MUTANTS[name]
    for path, text, fault in edits:
      source = (pathlib.Path(__file__).parents[2] / path).read_text()
      self.assertEqual(source.count(text), 1, msg=path)
      self.assertNotEqual(text, fault)
