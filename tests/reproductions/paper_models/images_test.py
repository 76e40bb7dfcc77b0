"""Networks for images; `tests/exchange` compares ResNet with others."""

from absl.testing import parameterized
import jax
import numpy as np

from bamboo_jax.models import model as model_lib
from bamboo_jax.reproductions.paper_models import convnet, resnet
from tests import plain

S, SIZE = 4, 32
LABELS = np.array([3, 1, 4, 1], np.int32)
KEPT = np.array([True, True, False, True])

MAKE = {"alexnet": convnet.make_alexnet, "resnet": resnet.make_resnet, "vgg": convnet.make_vgg}


def make_batch(size=SIZE):
  rng = np.random.default_rng(0)
  shape = (S, size, size, 3)
  return {"images": rng.integers(0, 256, shape).astype(np.uint8), "labels": LABELS}


def draw(model):
  """Returns random variables; compiles nothing, unlike `init_layer`."""
  rng = np.random.default_rng(1)
  make = lambda a: rng.uniform(0.1, 0.3, a.shape).astype(a.dtype)
  return jax.tree.map(make, model.variable_shapes())


class ImagesTest(parameterized.TestCase):

  @parameterized.product(name=("alexnet", "resnet", "vgg"), train=(False, True))
  def test_labels_below_zero_do_not_count(self, name, train):
    model, rng = MAKE[name](variant="tiny"), np.random.default_rng(0)
    last = len(model.layers) - 1
    draw = lambda shape: rng.normal(size=shape).astype(np.float32)
    shapes = model.variable_shapes()["head"].params["dense"]
    dense = {key: draw(array.shape) for key, array in shapes.items()}
    width = len(dense["kernel"])
    h = draw((S, 3, 3, width) if name == "resnet" else (S, width))  # An image of activations.
    logits = h.reshape(S, -1, width).mean(1) @ dense["kernel"] + dense["bias"]
    wanted = -jax.nn.log_softmax(logits)[np.arange(S), LABELS]
    is_right = logits.argmax(-1) == LABELS
    params, stats = {"head": {"dense": dense}}, {"head": {}}
    for kept in (KEPT | True, KEPT):
      batch = {"labels": np.where(kept, LABELS, -1)}
      loss, _ = model_lib.apply_range(
          model, last, last + 1, params, stats, h, batch, key=None, train=train
      )
      np.testing.assert_allclose(loss.total, wanted[kept].sum(), rtol=1e-5)
      self.assertEqual(loss.weight, kept.sum())
      count = None if train else is_right[kept].sum()  # Training saves the time.
      self.assertEqual(loss.metrics.get("accuracy"), count)

  def test_group_norm_has_no_statistics_and_looks_at_one_example(self):
    model = resnet.make_resnet(variant="tiny", norm="group")
    batch, variables = make_batch(16), draw(model)
    self.assertEmpty(jax.tree.leaves([v.stats for v in variables.values()]))
    params, last = {name: v.params for name, v in variables.items()}, len(model.layers) - 1
    apply = jax.jit(lambda b: plain.run_layers(model, params, b, last=last, train=True))
    swapped = {**batch, "images": batch["images"][[0, 1, 1, 1]]}
    np.testing.assert_allclose(apply(batch)[:2], apply(swapped)[:2], rtol=1e-4, atol=1e-5)

  @parameterized.parameters(
      ("resnet", {"norm": "layer"}, "norm 'layer'"),
      ("resnet", {"variant": "51"}, "variant of resnet '51'"),
      ("vgg", {"num_classes": 0}, "num_classes must be a positive integer"),
      ("alexnet", {"dropout_rate": 1.0}, "dropout_rate must be"),
  )
  def test_impossible_options(self, name, options, message):
    with self.assertRaisesRegex(ValueError, message):
      MAKE[name](**options)

  def test_images_of_another_size(self):
    model = convnet.make_vgg(variant="tiny")
    with self.assertRaisesRegex(ValueError, "image_size=16.*32, 32, 3"):
      model.input_shapes(make_batch(32))
