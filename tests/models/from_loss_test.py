"""A pure loss is a model of one layer with the same gradients."""

from absl.testing import parameterized
from flax import nnx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from bamboo_jax.models import from_loss as from_loss_lib, layer as layer_lib
from bamboo_jax.runtime.stage import programs as programs_lib, spec as spec_lib
from tests import plain

_BATCH = {
    "x": np.arange(12, dtype=np.float32).reshape(4, 3) / 6,
    "y": np.array([1.0, -1.0, 0.5, 2.0], np.float32),
}


def _init(key):
  return {"w": jax.random.normal(key, (3,)), "more": [jnp.zeros(()), ()]}


def _init_state(key):
  return _init(key), {"mean": jnp.ones(3)}


def _loss(params, batch):
  guess = batch["x"] @ params["w"] + params["more"][0]
  return jnp.mean((guess - batch["y"]) ** 2)


def _aux_loss(params, batch):
  guess = batch["x"] @ params["w"]
  return jnp.mean(guess**2), {"bias": jnp.mean(guess - batch["y"]), "three": 3}


def _make(loss=_loss, init=_init, batch_keys=("x", "y"), **more):
  return from_loss_lib.from_loss(init, loss, batch_keys=batch_keys, **more)


def _variables(model):
  return model.init_layer(0, seed=3, batch_shapes=_BATCH)


def _run(model, params, *, key=None, train=True):
  return plain.run_layers(model, {from_loss_lib.LAYER: params}, _BATCH, key=key, train=train)


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

  def test_metrics_are_sums(self):
    model = _make(_aux_loss, has_aux=True)
    params = _variables(model).params
    bias = float(np.mean(_BATCH["x"] @ params["w"] - _BATCH["y"]))
    for train in (True, False):
      metrics = _run(model, params, train=train).metrics
      self.assertAlmostEqual(float(metrics["bias"]), 4 * bias, places=5)
      self.assertEqual(float(metrics["three"]), 12.0)
      self.assertEqual(model.metrics(_BATCH, train=train), ("bias", "three"))

  def test_metrics_of_an_own_weight(self):
    weigh = lambda weight: lambda params, batch: (
        layer_lib.Loss(params["w"].sum(), jnp.float32(weight)),
        {"rate": params["w"].sum() * 0 / weight + 0.5},
    )
    for weight, found in ((8, 4.0), (0, 0.0)):  # The mean of nothing is not a number.
      model = _make(weigh(weight), has_aux=True)
      loss = _run(model, _variables(model).params)
      self.assertEqual((float(loss.weight), float(loss.metrics["rate"])), (weight, found))

  def test_state(self):
    init = lambda key: (_init(key), {"mean": jnp.ones(3), "ema": [jnp.zeros(())]})

    def loss(params, state, batch, key):
      found = _loss(params, batch) + state["mean"].sum()
      mean = 0.5 * state["mean"] + 0.5 * batch["x"].mean(0)
      return found, {"mean": mean, "ema": [state["ema"][0] + (key is not None)]}, {"a": 1.0}

    evaluate = lambda params, state, batch: {"old": state["mean"].sum()}
    model = _make(loss, init, has_aux=True, has_state=True, evaluate=evaluate)
    variables = _variables(model)
    self.assertEqual({k: v.shape for k, v in variables.stats.items()}, {"mean": (3,), "ema/0": ()})
    (layer,) = model.layers
    params, state = layer.to_pytree(variables)
    want = jax.tree.structure(init(jax.random.key(0)))
    self.assertEqual(jax.tree.structure((params, state)), want)
    given = (variables.params, variables.stats, None, _BATCH)
    for train in (False, True):  # There is no key in evaluation.
      found, new = layer.apply(*given, key=jax.random.key(1), train=train)
      self.assertAlmostEqual(float(found.total), 4 * (float(_loss(params, _BATCH)) + 3), places=5)
      np.testing.assert_allclose(new["mean"], 0.5 + 0.5 * _BATCH["x"].mean(0), rtol=1e-6)
      self.assertEqual(float(new["ema/0"]), float(train))
      metrics = {"a": 4.0} if train else {"a": 4.0, "old": 12.0}
      self.assertEqual({k: float(v) for k, v in found.metrics.items()}, metrics)
      self.assertEqual(model.metrics(_BATCH, train=train), (*metrics,))

  @parameterized.parameters("full", "model=dots", "model=inputs")
  def test_gradients_ignore_metrics_and_remat(self, remat):
    def root(params, batch, *, key):
      drawn = 1.0 if key is None else jax.random.uniform(key)
      loss = drawn * params["w"].sum() + _loss(params, batch)
      return loss, {"root": jnp.sqrt(params["more"][0])}  # It has no derivative at this 0.

    alone = _make(lambda params, batch, *, key: root(params, batch, key=key)[0])
    model, key = _make(root, has_aux=True).with_remat(remat), jax.random.key(5)
    params = _variables(model).params
    stack = lambda model: lambda params: _run(model, params, key=key).stack()
    total = jax.grad(lambda params: stack(alone)(params)[0])(params)
    _, vjp = jax.vjp(stack(model), params)
    jax.tree.map(np.testing.assert_array_equal, vjp(jnp.array([1.0, 0.0, 0.0])), (total,))

  def test_refuses_other_metrics_later(self):
    names = ["a"]
    model = _make(lambda p, b: (_loss(p, b), dict.fromkeys(names, 1.0)), has_aux=True)
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), _BATCH)
    unit = spec_lib.StageSpec(model, 0, 1, shapes, optax.sgd(0.1))
    passes = programs_lib.UnitPrograms(unit)
    given = (None, (_variables(model).params,), ({},), None, _BATCH)
    self.assertEqual(passes._evaluate(*given)[1].shape, (3,))
    names.append("b")
    with self.assertRaisesRegex(ValueError, "the same metrics: \\('a',\\), then \\('a', 'b'\\)"):
      passes._evaluate(*given)

  @parameterized.named_parameters(
      *(
          (name, message, dict(init=init))
          for name, message, init in (
              ("integers", "'n' .*int32", lambda key: {"n": jnp.zeros((), jnp.int32)}),
              ("no_array", "'a/b' .*float", lambda key: {"a": {"b": 1.0}}),
              ("nothing", "no parameters", lambda key: {}),
              (
                  "one_name",
                  "Two arrays of a pytree are called 'a/b'",
                  lambda key: {"a/b": jnp.zeros(2), "a": {"b": jnp.ones(2)}},
              ),
              (
                  "nnx_statistics",
                  "'mean' is of nnx.BatchStat, must be nnx.Param. It is not trained: say from_loss",
                  lambda key: nnx.state(nnx.BatchNorm(2, rngs=nnx.Rngs(key))),
              ),
              (
                  "linen_statistics",
                  "init returned 'batch_stats', of BatchNorm",
                  lambda key: nn.BatchNorm(True).init(key, jnp.ones((1, 2))),
              ),
          )
      ),
      ("no_state", "must return \\(params, state\\), got a dict", dict(has_state=True)),
      (
          "counter",
          "State 'n' .* int32",
          dict(init=lambda key: (_init(key), {"n": jnp.zeros((), int)}), has_state=True),
      ),
      ("no_keys", "batch_keys must be a tuple of names .* got \\(\\)", dict(batch_keys=())),
      ("one_key", "batch_keys must be .* got 'x'", dict(batch_keys="x")),
      (
          "parts",
          "weight of a layer.Loss must be a scalar, got an array \\(4,\\)",
          dict(loss=lambda p, b: layer_lib.Loss(p["w"].sum(), b["y"])),
      ),
      ("pair", "got a tuple of 2. For .* has_aux=True", dict(loss=_aux_loss)),
      *(
          (name, message, dict(loss=loss, has_aux=True))
          for name, loss, message in (
              ("no_pair", lambda p, b: p["w"].sum(), "must return \\(loss, metrics\\), got a"),
              ("no_dict", lambda p, b: (p["w"].sum(), 0.5), "of loss must be a dict, got a float"),
              (
                  "array",
                  lambda p, b: (p["w"].sum(), {"a": b["y"]}),
                  "'a': an array \\(4,\\) of flo",
              ),
              ("number", lambda p, b: (p["w"].sum(), {1: 1.0}), "scalars by name, got 1: a float"),
              ("many", lambda p, b: (p["w"], {}), "a scalar of floats .* got an array \\(3,\\)"),
          )
      ),
      *(
          (f"state_{name}", message, dict(init=_init_state, loss=loss, has_state=True))
          for name, loss, message in (
              ("lost", lambda p, s, b: (p["w"].sum(), {}), "'mean' was an array .* is a NoneType"),
              ("more", lambda p, s, b: (p["w"].sum(), {**s, "x": s["mean"]}), "'x' was a NoneType"),
              (
                  "three",
                  lambda p, s, b: (p["w"].sum(), s, {}),
                  "\\(loss, state\\), got a tuple of 3",
              ),
          )
      ),
  )
  def test_refuses(self, message, given):
    with self.assertRaisesRegex(ValueError, message):
      _make(**given).metrics(_BATCH, train=True)

  def test_takes_parameters_of_nnx(self):
    init = lambda key: nnx.state(nnx.Linear(2, 3, rngs=nnx.Rngs(key)))
    layer = _make(init=init).layers[0]
    params = layer.init(jax.random.key(0), None, {}).params
    shapes = sorted(value.shape for value in params.values())
    self.assertEqual(shapes, [(2, 3), (3,)])
