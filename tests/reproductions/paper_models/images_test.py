"""Networks for images; `tests/exchange` compares ResNet with others."""

from absl.testing import parameterized
import jax
import numpy as np

from bamboo_jax.models import model as model_lib
from bamboo_jax.reproductions.paper_models import convnet, resnet

S, SIZE = 4, 32
LABELS = np.array([3, 1, 4, 1], np.int32)

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


def run(model, variables, batch, *, params=None, train=False):
  """Returns logits, loss and statistics."""
  last = len(model.layers) - 1
  params = params or {name: v.params for name, v in variables.items()}
  stats = {name: v.stats for name, v in variables.items()}
  options = dict(key=jax.random.key(0) if train else None, train=train)
  h, new_stats = model_lib.apply_range(model, 0, last, params, stats, None, batch, **options)
  head = model.layers[last]
  pooled = h.mean((1, 2)) if h.ndim == 4 else h
  dense = params[head.name]["dense"]
  logits = pooled @ dense["kernel"] + dense["bias"]
  loss, _ = model_lib.apply_range(model, last, last + 1, params, stats, h, batch, **options)
  return logits, loss, new_stats


class ImagesTest(parameterized.TestCase):

  @parameterized.product(name=("alexnet", "resnet", "vgg"), train=(False, True))
  def test_labels_below_zero_do_not_count(self, name, train):
    model = MAKE[name](variant="tiny", image_size=16)
    batch = make_batch(16)
    variables = draw(model)
    apply = jax.jit(lambda b: run(model, variables, b, train=train)[:2])
    logits, loss = apply(batch)
    fewer = {**batch, "labels": np.where(np.arange(S) == 2, -1, LABELS)}
    part = apply(fewer)[1]
    expected = -jax.nn.log_softmax(logits)[np.arange(S), LABELS]
    is_right = logits.argmax(-1) == LABELS
    np.testing.assert_allclose(loss.total, expected.sum(), rtol=1e-5)
    self.assertEqual((loss.weight, part.weight), (4.0, 3.0))
    counts = [is_right.sum(), is_right[fewer["labels"] >= 0].sum()]
    found = [one.metrics.get("accuracy") for one in (loss, part)]
    self.assertEqual(found, [None, None] if train else counts)  # Training saves the time.
    np.testing.assert_allclose(part.total, expected[fewer["labels"] >= 0].sum(), rtol=1e-5)

  def test_group_norm_has_no_statistics_and_looks_at_one_example(self):
    model = resnet.make_resnet(variant="tiny", norm="group")
    batch, variables = make_batch(16), draw(model)
    self.assertEmpty(jax.tree.leaves([v.stats for v in variables.values()]))
    apply = jax.jit(lambda b: run(model, variables, b, train=True)[0])
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
