import functools

from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np
import optax

from bamboo_jax.models import zoo
from bamboo_jax.runtime.profile import profiler, roofline
from bamboo_jax.runtime.stage import spec as spec_lib
from tests import plain

S = 2  # Examples per microbatch.


@functools.cache
def make_tiny(**options):
  return zoo.make_model("gpt2", variant="tiny", width=16, sequence_length=8, **options)


class InitTest(parameterized.TestCase):

  def test_is_that_of_gpt2(self):
    model = make_tiny()
    batch = model.batch_shapes(S)
    params = {
        name: model.init_layer(i, seed=0, batch_shapes=batch).params
        for i, name in enumerate(model.layer_names)
    }
    block, std = params["block_01.mlp"], 0.02
    for weight, expected in (
        (params["embed"]["wte"], std),
        (params["block_00.attention"]["qkv_weight"], std),
        (params["block_00.attention"]["out_weight"], std / 4**0.5),
        (block["up_weight"], std),
        (block["down_weight"], std / 4**0.5),
    ):
      self.assertAlmostEqual(float(weight.std()) / expected, 1.0, delta=0.15)
    np.testing.assert_array_equal(block["norm_scale"], 1)
    np.testing.assert_array_equal(block["up_bias"], 0)
    # Dropout.
    with self.assertRaisesRegex(ValueError, "Layer 'embed' needs a key"):
      plain.run_layers(model, params, jax.tree.map(jnp.zeros_like, batch), train=True)


class ResidualsTest(parameterized.TestCase):

  @parameterized.parameters(  # All pairs of values.
      ("float32", 0.0, True),
      ("float32", 0.1, False),
      ("bfloat16", 0.0, False),
      ("bfloat16", 0.1, True),
  )
  def test_hold_neither_parameters_nor_inputs(self, dtype, dropout_rate, tied):
    model = make_tiny(dtype=dtype, dropout_rate=dropout_rate, tied=tied)
    itemsize = jnp.dtype(dtype).itemsize
    # Bytes per token, in activations of the model width: 16 elements.
    probs, moments = model.fingerprint["num_heads"] * 8 / 16, 2 * 4 / 16
    mask = dropout_rate > 0
    expected = {
        "embed": mask + 4 / 16,
        "block_00.attention": (4 + probs) * itemsize + moments + (1 + probs) * mask,
        "block_00.mlp": 4 * itemsize + moments + mask,
        "head": (1 + 256 / 16) * itemsize + moments + (4 + 4 + 1) / 16,
    }
    batch = model.batch_shapes(S)
    whole = spec_lib.StageSpec(model, 0, len(model.layers), batch, optax.sgd(0.1))
    profile = profiler.estimate(whole, roofline.assume("cpu"), fingerprint={})
    found = {layer.name: layer.residual_bytes for layer in profile.layers}
    for name, width_bytes in expected.items():
      inputs = 0 if name == "embed" else itemsize  # A profile counts them too.
      # What a unit keeps is dealt to its layers, rounded.
      wanted = S * 8 * 16 * (width_bytes + inputs)
      self.assertAlmostEqual(found[name], wanted, delta=16, msg=name)
