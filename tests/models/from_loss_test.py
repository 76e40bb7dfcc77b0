"""A pure loss is a model of one layer with the same gradients."""

from absl.testing import absltest, parameterized
from flax import nnx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from bamboo_jax.models import from_loss as from_loss_lib, layer as layer_lib, model as model_lib

_BATCH = {
    "x": np.arange(12, dtype=np.float32).reshape(4, 3) / 6,
    "y": np.array([1.0, -1.0, 0.5, 2.0], np.float32),
}


def _init(key):
  return {"w": jax.random.normal(key, (3,)), "more": [jnp.zeros(()), ()]}


def _loss(params, batch):
  guess = batch["x"] @ params["w"] + params["more"][0]
  return jnp.mean((guess - batch["y"]) ** 2)


def _dropping_loss(params, batch, *, key):
  if key is None:
    return jnp.float32(7.0)
  return jax.random.uniform(key) * params["w"].sum()


def _make(loss=_loss, init=_init):
  return from_loss_lib.from_loss(init, loss, batch_keys=("x", "y"))


def _variables(model):
  return model.init_layer(0, seed=3, batch_shapes=_BATCH)


def _run(model, params, *, key=None, train=True):
  outputs, _ = model_lib.apply_range(
      model,
      0,
      1,
      {from_loss_lib.LAYER: params},
      {from_loss_lib.LAYER: {}},
      None,
      _BATCH,
      key=key,
      train=train,
  )
  return outputs


class FromLossTest(parameterized.TestCase):

  def test_parameters_are_named_by_their_path(self):
    params = _variables(_make()).params
    self.assertEqual({k: v.shape for k, v in params.items()}, {
        "w": (3,), "more/0": ()})  # fmt: skip

  def test_loss_is_summed_over_samples(self):
    model = _make()
    params = _variables(model).params
    tree = {"w": params["w"], "more": [params["more/0"], ()]}
    found = _run(model, params)
    self.assertEqual(float(found.weight), 4.0)
    self.assertAlmostEqual(float(found.total), 4 * float(_loss(tree, _BATCH)), places=5)
    gradient = jax.grad(lambda p: _run(model, p).total)(params)
    wanted = jax.grad(_loss)(tree, _BATCH)
    np.testing.assert_allclose(gradient["w"], 4 * wanted["w"], rtol=1e-6)

  @parameterized.parameters("full", "dots", "inputs")
  def test_remat_changes_nothing(self, remat):
    model = _make(_dropping_loss)
    params, key = _variables(model).params, jax.random.key(5)
    other = model.with_remat(remat)
    total = lambda m: lambda p: _run(m, p, key=key).total
    self.assertEqual(total(model)(params), total(other)(params))
    np.testing.assert_array_equal(
        jax.grad(total(model))(params)["w"], jax.grad(total(other))(params)["w"]
    )

  def test_key_is_none_in_evaluation(self):
    model = _make(_dropping_loss)
    params = _variables(model).params
    found = _run(model, params, key=jax.random.key(0), train=False)
    self.assertEqual(float(found.total), 28.0)

  def test_own_weights(self):
    loss = lambda params, batch: layer_lib.Loss(params["w"].sum(), jnp.float32(9))
    model = _make(loss)
    self.assertEqual(float(_run(model, _variables(model).params).weight), 9.0)

  @parameterized.named_parameters(
      ("integers", lambda key: {"n": jnp.zeros((), jnp.int32)}, "'n' .*int32"),
      ("half", lambda key: {"a": jnp.zeros(2, jnp.bfloat16)}, "bfloat16"),
      ("no_array", lambda key: {"a": {"b": 1.0}}, "'a/b' .*float"),
      ("nothing", lambda key: {}, "no parameters"),
      (
          "nnx_statistics",
          lambda key: nnx.state(nnx.BatchNorm(2, rngs=nnx.Rngs(key))),
          "'mean' is of nnx.BatchStat, must be nnx.Param. from_loss trains",
      ),
      (
          "linen_statistics",
          lambda key: nn.BatchNorm(True).init(key, jnp.ones((1, 2))),
          "init returned 'batch_stats', of BatchNorm",
      ),
  )
  def test_refuses_parameters(self, init, message):
    with self.assertRaisesRegex(ValueError, message):
      _variables(_make(init=init))

  def test_takes_parameters_of_nnx(self):
    init = lambda key: nnx.state(nnx.Linear(2, 3, rngs=nnx.Rngs(key)))
    layer = _make(init=init).layers[0]
    params = layer.init(jax.random.key(0), None, {}).params
    shapes = sorted(value.shape for value in params.values())
    self.assertEqual(shapes, [(2, 3), (3,)])

  def test_refuses_a_loss_per_sample(self):
    model = _make(lambda params, batch: batch["y"] * params["w"][0])
    with self.assertRaisesRegex(ValueError, "a scalar .* array \\(4,\\)"):
      _run(model, _variables(model).params)


if __name__ == "__main__":
  absltest.main()
