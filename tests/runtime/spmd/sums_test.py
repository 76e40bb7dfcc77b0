"""Passes as programs compute what rows and the plain model compute."""

import functools
from unittest import mock

from absl.testing import parameterized
import jax
import numpy as np

from bamboo_jax.runtime.stage import functions
from tests import plain
from tests.runtime.spmd import pipelines


@functools.cache
def plain_model(name, prng):
  return plain.PlainModel(pipelines.make_spec(name, prng=prng))


def relative_error(sums, spec, num_microbatches):
  """Returns how far sums are from gradients of the plain model."""
  want, loss, weight = plain_model(spec.model.name, spec.prng).grads(
      pipelines.initial_layers(spec),
      pipelines.microbatch,
      step=pipelines.STEP,
      microbatches=range(num_microbatches),
  )
  grads, total = {}, np.zeros(2)
  for part in sums.values():
    for name, layer in part.grads.items():
      zero = jax.tree.map(np.zeros_like, layer)
      grads[name] = jax.tree.map(np.add, grads.get(name, zero), layer)
    if part.loss is not None:
      total = total + part.loss
  np.testing.assert_allclose(total, [loss, weight], rtol=1e-5)
  for layer in spec.model.layers:  # Copies are summed in a later phase.
    for tie in layer.ties:
      both = grads[layer.name][tie.param] + grads[tie.layer][tie.layer_param]
      grads[layer.name][tie.param] = grads[tie.layer][tie.layer_param] = both
  return plain.relative_error(grads, {name: want[name] for name in grads})


def assert_statistics(sums, spec, num_microbatches):
  """Fails unless statistics are summed over microbatches."""
  model = plain_model(spec.model.name, spec.prng)
  layers = pipelines.initial_layers(spec)
  found = [
      model.stats(
          layers,
          pipelines.microbatch(pipelines.STEP, m),
          step=pipelines.STEP,
          microbatch=m,
      )
      for m in range(num_microbatches)
  ]
  want = jax.tree.map(lambda *a: np.sum(a, axis=0), *found)
  for part in sums.values():
    for name, stats in part.stats.items():
      jax.tree.map(
          lambda a, b: np.testing.assert_allclose(
              a, np.reshape(b, a.shape), rtol=1e-5, atol=1e-6
          ),
          stats,
          want[name],
      )


class SumsTest(parameterized.TestCase):

  def test_are_those_of_the_plain_model(self):
    sums = pipelines.undisturbed()
    self.assertLen(sums, 6)
    self.assertLessEqual(relative_error(sums, pipelines.make_spec(), 8), 1e-6)

  def test_have_the_bits_of_rows(self):
    # As units are blocks, and every program is compiled alike.
    want = pipelines.make_three().sums_of_rows()
    self.assertLen(want, 6)
    self.assertEmpty(pipelines.find_unequal(pipelines.undisturbed(), want))

  def test_weights_are_cast_once(self):
    found = []
    every_pass = lambda spec: spec.state.params
    for copies_of in (functions.copies_of, every_pass):
      with mock.patch.object(functions, "copies_of", copies_of):
        spec = pipelines.make_spec(dtype="bfloat16")
        made = pipelines.Pipelines(2, spec=spec)
      with pipelines.quick_compilation():
        made.begin()
        made.advance()
      weights = made.programs.runs[0].program.weights.blocks
      dtypes = {a.dtype.name for a in jax.tree.leaves(weights)}
      self.assertEqual("bfloat16" in dtypes, not found)
      found.append(made.sums())
    self.assertEmpty(pipelines.find_unequal(*found))

  @parameterized.named_parameters(
      ("single", {"order": "single"}, pipelines.make_spec()),
      ("remat", {}, pipelines.make_spec(remat="inputs")),
      ("remat_mlp", {}, pipelines.make_spec(remat="mlp=inputs")),
      ("heads", {"heads": True}, pipelines.make_spec()),
      ("prng", {}, pipelines.make_spec(prng="unsafe_rbg")),
      ("no_redundant", {"budget": None}, pipelines.make_spec()),
      (
          "statistics",
          {"bounds": (0, 4, 6)},
          pipelines.make_spec("tests.mlp_bn:make_mlp_bn"),
      ),
  )
  def test_with_two_stages(self, options, spec):
    made = pipelines.Pipelines(2, spec=spec, **options)
    with pipelines.quick_compilation():
      made.begin()
      made.advance()
      sums = made.sums()
      self.assertLessEqual(relative_error(sums, spec, 4), 1e-6)
      assert_statistics(sums, spec, 4)
      made.begin()
      made.advance(2)
      made.die(0)
      made.advance()
    self.assertEmpty(pipelines.find_unequal(made.sums(), sums))
