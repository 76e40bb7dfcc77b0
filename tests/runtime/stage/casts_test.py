"""Weights that passes read only in a lower precision; what is computed."""

import dataclasses
import functools
import itertools

from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np

from bamboo_jax.runtime.phases import update
from bamboo_jax.runtime.stage import programs as programs_lib, spec as spec_lib
from bamboo_jax.training import evaluation
from tests import samples
from tests.runtime import engine_test as engines
from tests.runtime.spmd import pipelines

low = lambda w: w.astype(jnp.bfloat16)
make_spec = functools.partial(pipelines.make_spec, num_blocks=1, dtype="bfloat16")


def names_of_copies(spec):
  """Returns the names of the parameters that are cast, by unit."""
  return [
      {
          jax.tree_util.keystr(path[1:], simple=True, separator=".")
          for path, copy in jax.tree_util.tree_leaves_with_path(
              programs_lib.UnitPrograms(unit).copies
          )
          if copy.dtype == jnp.bfloat16
      }
      for unit in spec.units
  ]


class FindCopiesTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ("cast", lambda w: low(w).sum(), "bfloat16"),
      ("twice", lambda w: low(w).sum() + low(w).max(), "bfloat16"),
      ("in_a_call", lambda w: jax.jit(low)(w).sum(), "bfloat16"),
      ("again", lambda w: jax.checkpoint(low)(w).sum(), "bfloat16"),
      ("in_a_loop", lambda w: jax.lax.scan(lambda c, x: (c, low(w)), 0, None, 2), "bfloat16"),
      ("also_itself", lambda w: low(w).sum() + w.sum(), "float32"),
      ("in_a_call_itself", lambda w: jax.jit(lambda w: w * w)(w), "float32"),
      ("returned", lambda w: (low(w), w), "float32"),
      ("to_two_dtypes", lambda w: (low(w), w.astype("float16")), "float32"),
      ("wider", lambda w: w.astype(jnp.int32).sum(), "float32"),
      ("a_part", lambda w: low(w[0]).sum(), "float32"),
      ("not_used", lambda w: 0, "float32"),
      ("of_two_branches", lambda w: jax.lax.cond(True, low, lambda w: low(2 * w), w), "float32"),
      (
          "carried",
          lambda w: jax.lax.while_loop(lambda c: low(c).sum() < 0, lambda c: 2 * c, w),
          "float32",
      ),
  )
  def test_dtype(self, run, want):
    like = jax.ShapeDtypeStruct((2, 2), jnp.float32)
    self.assertEqual(programs_lib.find_copies(run, like).dtype, want)


class ProgramsTest(parameterized.TestCase):

  @parameterized.parameters(
      ("gpt2", {f"{n}_{p}" for n in ("qkv", "out", "up", "down") for p in ("weight", "bias")}),
      ("llama", {f"{n}_proj.kernel" for n in ("q", "k", "v", "o", "gate", "up", "down")}),
  )
  def test_what_is_cast(self, name, block):
    self.assertEqual(names_of_copies(make_spec(name)), [set(), block, {"wte"}])
    # Chunks are cast one by one.
    chunked = make_spec(name, loss_chunk=8)
    self.assertEqual(names_of_copies(chunked), [set(), block, set()])
    self.assertFalse(any(names_of_copies(make_spec(name, dtype="float32"))))

  @parameterized.parameters(
      *samples.draw(itertools.product(["gpt2", "llama"], ["full", "inputs"]), 1)
  )
  def test_bits_are_those_of_the_parameters(self, name, remat):
    spec = dataclasses.replace(make_spec(name), remat=remat)
    for unit in spec.units:
      programs = programs_lib.UnitPrograms(unit)
      state = spec_lib.take(unit, spec_lib.init_layers(unit))
      params, stats = state.params, state.stats
      rng = np.random.default_rng(0)
      random = lambda a, rng=rng: rng.standard_normal(a.shape).astype(a.dtype)
      inputs, grad = jax.tree.map(random, (unit.inputs, unit.outputs))
      batch = {k: pipelines.microbatch(0, 0)[k] for k in unit.batch_keys}
      run = jax.jit(programs._passes)
      rest = (grad, (stats, inputs, batch), np.uint32(1))
      want = run(params, *rest)
      got = run(programs.cast(params), *rest)
      jax.tree.map(np.testing.assert_array_equal, got, want)
      for a in jax.tree.leaves(got[1][2].grads):
        self.assertEqual(a.dtype, jnp.float32)


class StepsTest(parameterized.TestCase):

  def make_engine(self):
    whole = make_spec()
    engine = engines.build(whole.cut([0, 3, whole.last]), [(0, 1)], cache=engines.CACHE)
    engine.set_state(spec_lib.init_layers(whole))
    return engine

  def run_step(self, engine, step):
    engines.run(engine, pipelines.feed(step), num_microbatches=2, step=step)

  def test_copies_are_those_of_the_state(self):
    """Nodes that have trained compute what those do that got their state."""
    engine, other = self.make_engine(), self.make_engine()
    batches = [(0, pipelines.microbatch(2, 0))]
    self.run_step(engine, 0)
    update.apply(engine, 1.0)
    before = evaluation.evaluate(other, batches)[0]
    other.set_state(engine.layer_states())
    for changed in (engine, other):
      after = evaluation.evaluate(changed, batches)[0]
      self.assertNotEqual(after[0], before[0])
      self.run_step(changed, 1)
    got, want = engines.grads_of(engine), engines.grads_of(other)
    jax.tree.map(np.testing.assert_array_equal, got, want)
