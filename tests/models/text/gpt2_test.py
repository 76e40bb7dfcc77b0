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
from tests.models.text import attention_test, dense_test, losses_test

S = 2  # Examples per microbatch.
ONE_BLOCK = (("num_blocks", 1), ("dropout_rate", 0.0))


@functools.cache
def make_tiny(**options):
  return zoo.make_model("gpt2", variant="tiny", width=16, sequence_length=8, **options)


def make_batch(model):
  rng = np.random.default_rng(0)
  vocab_size = model.fingerprint["vocab_size"]
  return {
      key: jnp.asarray(rng.integers(0, vocab_size, array.shape), jnp.int32)
      for key, array in model.batch_shapes(S).items()
  }


@functools.cache
def init_params(model_key, seed=0):
  model = make_tiny(**dict(model_key))
  batch = model.batch_shapes(S)
  return {
      name: model.init_layer(i, seed=seed, batch_shapes=batch).params
      for i, name in enumerate(model.layer_names)
  }


def plain_loss(params, batch, num_heads):
  """GPT-2 of one block without dropout, as one would write it down."""
  norm = lambda p, x: dense_test.plain_norm(x, p["norm_scale"], p["norm_shift"])

  def attention(p, x):
    qkv = norm(p, x) @ p["qkv_weight"] + p.get("qkv_bias", 0)
    read = attention_test.plain_attend(qkv, None, num_heads)
    return x + read @ p["out_weight"] + p.get("out_bias", 0)

  def mlp(p, x):
    up = jax.nn.gelu(norm(p, x) @ p["up_weight"] + p["up_bias"])
    return x + up @ p["down_weight"].T + p["down_bias"]

  embed, head = params["embed"], params["head"]
  h = embed["wte"][batch["inputs"]] + embed["wpe"]
  h = mlp(params["block_00.mlp"], attention(params["block_00.attention"], h))
  weight = head["wte"].T if "wte" in head else head["weight"]
  return losses_test.plain_loss(norm(head, h), weight, batch["targets"])


class InitTest(parameterized.TestCase):

  def test_is_that_of_gpt2(self):
    params = init_params(())
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
    np.testing.assert_array_equal(params["head"]["wte"], params["embed"]["wte"])


class GradientsTest(parameterized.TestCase):

  @parameterized.parameters((True, None), (False, "xla"))
  def test_equal_autodiff_of_the_formulas(self, tied, attention):
    chunk = attention and 100  # Of 256.
    chosen = (("attention", attention), ("loss_chunk", chunk))
    options = (("tied", tied), ("attention_bias", tied), *ONE_BLOCK, *chosen)
    model = make_tiny(**dict(options))
    params, batch = init_params(options), make_batch(model)
    # At their first values, many gradients would be zero or nearly so.
    params = jax.tree.map(lambda p: 10 * p + 0.1 * jnp.sin(p * 1e3), params)
    loss_fn = lambda params: plain.run_layers(model, params, batch, train=True).total
    value, grads = jax.jit(jax.value_and_grad(loss_fn))(params)
    want_fn = functools.partial(plain_loss, batch=batch, num_heads=4)
    want, want_grads = jax.jit(jax.value_and_grad(want_fn))(params)
    np.testing.assert_allclose(value, want, rtol=1e-6)
    for name in model.layer_names:
      error = plain.relative_error(grads[name], want_grads[name])
      self.assertLess(error, 5e-5, name)  # Some CPUs: 2.6e-5.


class DropoutTest(parameterized.TestCase):

  def test_needs_a_key_in_training(self):
    with self.assertRaisesRegex(ValueError, "Layer 'embed' needs a key"):
      plain.run_layers(make_tiny(), init_params(()), make_batch(make_tiny()), train=True)


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
