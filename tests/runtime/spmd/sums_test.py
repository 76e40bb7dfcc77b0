"""Passes as programs compute what rows compute."""

from unittest import mock

from absl.testing import parameterized
import jax

from bamboo_jax.runtime.stage import programs as programs_lib
from tests.runtime.spmd import pipelines


class SumsTest(parameterized.TestCase):

  def test_weights_are_cast_once(self):
    found = []
    every_pass = lambda run, params, *others: params
    for find_copies in (programs_lib.find_copies, every_pass):
      with mock.patch.object(programs_lib, "find_copies", find_copies):
        spec = pipelines.make_spec(dtype="bfloat16")
        made = pipelines.Pipelines(2, spec=spec, budget=None)
      with pipelines.quick_compilation():
        made.begin()
        made.advance()
      weights = made.programs.runs[0].program.given.weights.blocks
      dtypes = {a.dtype.name for a in jax.tree.leaves(weights)}
      self.assertEqual("bfloat16" in dtypes, not found)
      found.append(made.sums())
    self.assertEmpty(pipelines.find_unequal(*found))

  @parameterized.named_parameters(
      ("prng", {}, pipelines.make_spec(remat="inputs", prng="unsafe_rbg")),
      ("no_redundant", {"budget": None}, pipelines.make_spec()),
      ("statistics", {"bounds": (0, 3, 6)}, pipelines.make_spec("tests.mlp_bn:make_mlp_bn")),
  )
  def test_with_two_stages(self, options, spec):
    made = pipelines.Pipelines(2, spec=spec, segment_ticks=1, **options)
    with pipelines.quick_compilation():
      made.begin()
      made.advance()
      sums = made.sums()
      for num_segments in (1, 4):  # After the first, only an input may be left.
        made.begin()
        made.advance(num_segments)
        made.die(0)
        made.advance()
        self.assertEmpty(pipelines.find_unequal(made.sums(), sums))
    self.assertEmpty(pipelines.find_unequal(sums, made.sums_of_rows()))
