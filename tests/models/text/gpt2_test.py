import functools

from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np

from bamboo_jax.models import model as model_lib, zoo
from tests import plain

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


def run(model, params, batch, *, key=None, train=False):
  stats = {name: {} for name in model.layer_names}
  last = len(model.layers)
  loss, _ = model_lib.apply_range(model, 0, last, params, stats, None, batch, key=key, train=train)
  return loss


def plain_loss(params, batch, num_heads):
  """GPT-2 of one block without dropout, as one would write it down."""

  def norm(p, x):
    centered = x - x.mean(-1, keepdims=True)
    variance = (centered**2).mean(-1, keepdims=True)
    standard = centered / jnp.sqrt(variance + 1e-5)
    return standard * p["norm_scale"] + p["norm_shift"]

  def attention(p, x):
    qkv = norm(p, x) @ p["qkv_weight"] + p.get("qkv_bias", 0)
    heads = lambda a: a.reshape(*a.shape[:2], num_heads, -1).swapaxes(1, 2)
    q, k, v = map(heads, jnp.split(qkv, 3, axis=-1))
    scores = q @ k.swapaxes(2, 3) / np.sqrt(q.shape[-1])
    past = np.tril(np.ones(scores.shape[-2:], bool))
    read = jax.nn.softmax(jnp.where(past, scores, -1e30)) @ v
    read = read.swapaxes(1, 2).reshape(x.shape)
    return x + read @ p["out_weight"] + p.get("out_bias", 0)

  def mlp(p, x):
    up = jax.nn.gelu(norm(p, x) @ p["up_weight"] + p["up_bias"])
    return x + up @ p["down_weight"].T + p["down_bias"]

  embed, head = params["embed"], params["head"]
  h = embed["wte"][batch["inputs"]] + embed["wpe"]
  h = mlp(params["block_00.mlp"], attention(params["block_00.attention"], h))
  weight = head["wte"].T if "wte" in head else head["weight"]
  logp = jax.nn.log_softmax(norm(head, h) @ weight)
  target = batch["targets"][..., None]
  return -jnp.take_along_axis(logp, target, axis=-1).sum()


class SizesTest(parameterized.TestCase):

  def test_options(self):
    """The model that is compared with torch."""
    model = zoo.make_model(
        "gpt2",
        variant="tiny",
        num_blocks=8,
        width=256,
        sequence_length=128,
        vocab_size=8192,
        dropout_rate=0.0,
        tied=False,
        attention_bias=False,
    )
    block = 12 * 256**2 + 2 * 2 * 256 + 5 * 256
    self.assertEqual(model.num_params(), (2 * 8192 + 128) * 256 + 8 * block + 2 * 256)

  def test_layers(self):
    model = make_tiny()
    self.assertEqual(
        model.layer_names,
        (
            "embed",
            "block_00.attention",
            "block_00.mlp",
            "block_01.attention",
            "block_01.mlp",
            "head",
        ),
    )
    kinds = [layer.kind for layer in model.layers]
    self.assertLen(set(kinds), 4)
    self.assertEqual(kinds[1:3], kinds[3:5])

  @parameterized.named_parameters(
      ("model", "gtp2", {}, "Unknown model 'gtp2'; did you mean 'gpt2'"),
      ("option", "gpt2", {"widht": 8}, "option .* 'widht'; .* 'width'"),
      ("variant", "gpt2", {"variant": "smal"}, "'smal'; did you mean 'small'"),
      ("dtype", "gpt2", {"dtype": "float16"}, "Unknown dtype 'float16'"),
      ("heads", "gpt2", {"width": 70}, "width=70 must be a multiple of num_he"),
      ("zero", "gpt2", {"num_blocks": 0}, "num_blocks must be a positive int"),
      ("rate", "gpt2", {"dropout_rate": 1.0}, "dropout_rate must be"),
      ("chunk", "gpt2", {"loss_chunk": 0}, "loss_chunk must be a positive"),
      ("kernel", "gpt2", {"attention": "cudn"}, "did you mean 'cudnn'"),
      ("drop", "gpt2", {"attention": "xla"}, "'xla' does not .* got 0.1"),
      ("cudnn", "llama", {"attention": "cudnn"}, "needs dtype=bfloat16, got f"),
  )
  def test_refuses(self, name, options, message):
    with self.assertRaisesRegex(ValueError, message):
      zoo.make_model(name, **options)

  @parameterized.parameters(
      ("inputs", "sequence_length=8, but 'inputs' .* shape \\(2, 7\\)"),
      ("targets", "'targets' .* shape \\(2, 7\\), .* \\(2, 8\\)"),
  )
  def test_refuses_batch_of_another_length(self, key, message):
    model = make_tiny()
    batch = model.batch_shapes(S)
    batch[key] = jax.ShapeDtypeStruct((S, 7), np.int32)
    with self.assertRaisesRegex(ValueError, message):
      model.input_shapes(batch)
      last = len(model.layers) - 1
      model.init_layer(last, seed=0, batch_shapes=batch)


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
    loss_fn = lambda params: run(model, params, batch, train=True).total
    value, grads = jax.jit(jax.value_and_grad(loss_fn))(params)
    want_fn = functools.partial(plain_loss, batch=batch, num_heads=4)
    want, want_grads = jax.jit(jax.value_and_grad(want_fn))(params)
    np.testing.assert_allclose(value, want, rtol=1e-6)
    for name in model.layer_names:
      error = plain.relative_error(grads[name], want_grads[name])
      self.assertLess(error, 5e-5, name)  # Some CPUs: 2.6e-5.


class DropoutTest(parameterized.TestCase):

  def losses(self, *, train, keys):
    model, params = make_tiny(num_blocks=1), init_params((("num_blocks", 1),))
    batch = make_batch(model)
    loss_fn = jax.jit(lambda key: run(model, params, batch, key=key, train=train).total)
    return [float(loss_fn(key)) for key in keys]

  def test_depends_on_the_key(self):
    keys = [model_lib.microbatch_key(0, 0, m) for m in (0, 0, 1)]
    first, same, other = self.losses(train=True, keys=keys)
    self.assertEqual(first, same)
    self.assertNotEqual(first, other)

  def test_is_off_in_evaluation(self):
    keys = [model_lib.microbatch_key(0, 0, m) for m in (0, 1)]
    first, other = self.losses(train=False, keys=keys)
    self.assertEqual(first, other)

  def test_needs_a_key_in_training(self):
    with self.assertRaisesRegex(ValueError, "Layer 'embed' needs a key"):
      run(make_tiny(), init_params(()), make_batch(make_tiny()), train=True)


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
    for name, width_bytes in expected.items():
      self.assertEqual(self.residual_bytes(model, name), S * 8 * 16 * width_bytes)

  def residual_bytes(self, model, name):
    index = model.layer_names.index(name)
    batch = model.batch_shapes(S)
    make = lambda: model.init_layer(index, seed=0, batch_shapes=batch)
    params = {name: jax.eval_shape(make).params}

    def residuals(params, inputs, batch):
      function = lambda params, inputs: model_lib.apply_range(
          model,
          index,
          index + 1,
          params,
          {name: {}},
          inputs,
          batch,
          key=jax.random.key(0),
          train=True,
      )[0]
      kept = jax.vjp(function, params, inputs)[1].opaque_residuals
      self.assertLen({id(k) for k in kept}, len(kept))
      return kept

    inputs = model.input_shapes(batch)[index]
    kept = jax.eval_shape(residuals, params, inputs, batch)
    return sum(k.size * k.dtype.itemsize for k in kept)
