"""What the functions of a stage depend on."""

import dataclasses

from absl.testing import parameterized
import jax
import numpy as np

from bamboo_jax.runtime.stage import functions as functions_lib, spec as spec_lib
from tests.runtime.spmd import pipelines as small


class FunctionsTest(parameterized.TestCase):

  def outputs(self, *, step=0, microbatch=0, index=0, **changes):
    """Returns the output of the embedding in training, with dropout."""
    (unit,) = dataclasses.replace(small.make_spec(), last=1, **changes).units
    state = spec_lib.merge_layers(spec_lib.init_layers(unit))
    state = spec_lib.to_unit(state, unit)
    _, outputs, _ = jax.jit(functions_lib.UnitFunctions(unit).forward)(
        functions_lib.make_token(),
        state.params,
        state.stats,
        None,
        small.microbatch(0, 0),
        np.uint32(step),
        np.uint32(microbatch),
        np.uint32(index),
    )
    return np.asarray(outputs)

  @parameterized.parameters(
      dict(step=1), dict(microbatch=1), dict(index=1), dict(prng="rbg"), dict(prng="unsafe_rbg")
  )
  def test_dropout_depends_on(self, **changes):
    plain = self.outputs()
    np.testing.assert_array_equal(self.outputs(), plain)
    self.assertTrue(np.any(self.outputs(**changes) != plain))
