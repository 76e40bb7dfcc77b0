import dataclasses

from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np

from bamboo_jax.models import layer as layer_lib, model as model_lib

BATCH = {"x": jax.ShapeDtypeStruct((2, 3), jnp.float32)}


@dataclasses.dataclass(frozen=True)
class Scale:
  """Multiplies by one number per column and adds noise from its key."""

  name: str
  batch_keys: tuple[str, ...] = ()
  ties: tuple[layer_lib.Tie, ...] = ()

  @property
  def kind(self):
    return "scale", self.batch_keys

  def init(self, key, inputs, batch):
    width = (batch["x"] if inputs is None else inputs).shape[-1]
    params = {"scale": jax.random.normal(key, (width,))}
    return layer_lib.Variables(params=params, stats={"calls": jnp.zeros(())})

  def apply(self, params, stats, inputs, batch, *, key, train):
    outputs = params["scale"] * (batch["x"] if inputs is None else inputs)
    if key is not None:
      outputs += jax.random.normal(key, outputs.shape)
    return outputs, {"calls": stats["calls"] + train}


def make_model(*layers):
  return model_lib.Model("test", layers, {})


def tie_to(layer, param="scale"):
  return (layer_lib.Tie("scale", layer, param),)


THREE = make_model(Scale("a", batch_keys=("x",)), Scale("b"), Scale("c", ties=tie_to("a")))


def init(model, *, seed=0, batch=BATCH):
  return {
      name: model.init_layer(i, seed=seed, batch_shapes=batch)
      for i, name in enumerate(model.layer_names)
  }


class ModelTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ("no_layers", (), "needs at least one layer"),
      ("same_name", (Scale("a"), Scale("a")), "Two layers are called 'a'"),
      (
          "tie_to_later_layer",
          (Scale("a", ties=tie_to("b")), Scale("b")),
          r"'a' ties 'scale' to 'b', which must be an earlier layer",
      ),
  )
  def test_refuses(self, layers, message):
    with self.assertRaisesRegex(ValueError, message):
      make_model(*layers)

  def test_refuses_tie_to_unknown_parameter(self):
    for ties in (tie_to("a", "size"), (layer_lib.Tie("size", "a", "scale"),)):
      model = make_model(Scale("a", batch_keys=("x",)), Scale("b", ties=ties))
      message = rf"'{ties[0].param}' to '{ties[0].layer_param}' of 'a'.*only \['scale'\]"
      with self.assertRaisesRegex(ValueError, message):
        init(model)

  def test_refuses_batch_without_entry(self):
    with self.assertRaisesRegex(ValueError, r"'a' reads \['x'\].*only \['y'\]"):
      THREE.input_shapes({"y": BATCH["x"]})

  def test_input_shapes(self):
    self.assertEqual(THREE.input_shapes(BATCH), (None, BATCH["x"], BATCH["x"]))

  def test_parameters_depend_on_seed_and_index_only(self):
    larger = {"x": jax.ShapeDtypeStruct((7, 3), jnp.float32)}
    first, again = init(THREE), init(THREE, batch=larger)
    other = init(THREE, seed=1)
    for name in THREE.layer_names:
      scale = first[name].params["scale"]
      np.testing.assert_array_equal(scale, again[name].params["scale"])
      self.assertFalse(np.array_equal(scale, other[name].params["scale"]))

  def test_copies_of_a_tied_parameter_start_equal(self):
    scales = {k: v.params["scale"] for k, v in init(THREE).items()}
    np.testing.assert_array_equal(scales["a"], scales["c"])
    self.assertFalse(np.array_equal(scales["a"], scales["b"]))

  @parameterized.parameters(1, 2)
  def test_any_partition_computes_the_same(self, cut):
    variables = init(THREE)
    params = {name: v.params for name, v in variables.items()}
    stats = {name: v.stats for name, v in variables.items()}
    batch = {"x": jnp.ones((2, 3))}
    key = model_lib.microbatch_key(0, 1, 2)

    def run(first, last, inputs):
      return model_lib.apply_range(
          THREE, first, last, params, stats, inputs, batch, key=key, train=True
      )

    whole, whole_stats = run(0, 3, None)
    middle, head_stats = run(0, cut, None)
    tail, tail_stats = run(cut, 3, middle)
    np.testing.assert_array_equal(whole, tail)
    self.assertEqual(whole_stats, head_stats | tail_stats)
    self.assertEqual(whole_stats["c"]["calls"], 1)


class MicrobatchKeyTest(parameterized.TestCase):

  @parameterized.parameters("threefry2x32", "rbg")
  def test_differs_between_all_microbatches(self, impl):
    make = jax.jit(
        lambda *counters: jax.random.key_data(model_lib.microbatch_key(*counters, impl=impl))
    )
    cases = [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0), (0, 1, 1)]
    keys = {tuple(np.asarray(make(*case))) for case in cases}
    self.assertLen(keys, len(cases))
    np.testing.assert_array_equal(
        make(0, 1, 2), jax.random.key_data(model_lib.microbatch_key(0, 1, 2, impl=impl))
    )
