"""Networks for images, and ResNet against that of `transformers`."""

from absl.testing import parameterized
import jax
import numpy as np
import pytest

from bamboo_jax.models import images
from bamboo_jax.models import model as model_lib
from bamboo_jax.models import zoo

S, SIZE = 4, 32
LABELS = np.array([3, 1, 4, 1], np.int32)


def make_batch(size=SIZE):
  rng = np.random.default_rng(0)
  shape = (S, size, size, 3)
  return {
      "images": rng.integers(0, 256, shape).astype(np.uint8),
      "labels": LABELS,
  }


def shapes_of(model):
  batch = model.batch_shapes(S)
  return {
      name: jax.eval_shape(
          lambda i=i: model.init_layer(i, seed=0, batch_shapes=batch)
      )
      for i, name in enumerate(model.layer_names)
  }


def draw(model):
  """Returns random variables; compiles nothing, unlike `init_layer`."""
  rng = np.random.default_rng(1)
  make = lambda a: rng.uniform(0.1, 0.3, a.shape).astype(a.dtype)
  return jax.tree.map(make, shapes_of(model))


def run(model, variables, batch, *, params=None, train=False):
  """Returns logits, loss and statistics."""
  last = len(model.layers) - 1
  params = params or {name: v.params for name, v in variables.items()}
  stats = {name: v.stats for name, v in variables.items()}
  options = dict(key=jax.random.key(0) if train else None, train=train)
  h, new_stats = model_lib.apply_range(
      model, 0, last, params, stats, None, batch, **options
  )
  head = model.layers[last]
  logits = head.module.apply({"params": params[head.name]}, h, method="logits")
  loss, _ = model_lib.apply_range(
      model, last, last + 1, params, stats, h, batch, **options
  )
  return logits, loss, new_stats


class ImagesTest(parameterized.TestCase):

  @parameterized.product(name=("alexnet", "resnet", "vgg"), train=(False, True))
  def test_labels_below_zero_do_not_count(self, name, train):
    model = zoo.make_model(name, variant="tiny", image_size=16)
    batch = make_batch(16)
    variables = draw(model)
    apply = jax.jit(lambda b: run(model, variables, b, train=train)[:2])
    logits, loss = apply(batch)
    fewer = {**batch, "labels": np.where(np.arange(S) == 2, -1, LABELS)}
    part = apply(fewer)[1]
    expected = -jax.nn.log_softmax(logits)[np.arange(S), LABELS]
    np.testing.assert_allclose(loss.total, expected.sum(), rtol=1e-5)
    self.assertEqual((loss.weight, part.weight), (4.0, 3.0))
    np.testing.assert_allclose(
        part.total, expected[fewer["labels"] >= 0].sum(), rtol=1e-5
    )

  def test_group_norm_has_no_statistics_and_looks_at_one_example(self):
    model = zoo.make_model("resnet", variant="tiny", norm="group")
    batch, variables = make_batch(16), draw(model)
    self.assertEmpty(jax.tree.leaves([v.stats for v in variables.values()]))
    apply = jax.jit(lambda b: run(model, variables, b, train=True)[0])
    swapped = {**batch, "images": batch["images"][[0, 1, 1, 1]]}
    np.testing.assert_allclose(
        apply(batch)[:2], apply(swapped)[:2], rtol=1e-4, atol=1e-5
    )

  @parameterized.parameters(
      ("resnet", {"norm": "layer"}, "norm 'layer'"),
      ("resnet", {"variant": "51"}, "variant of resnet '51'"),
      ("vgg", {"num_classes": 0}, "num_classes must be a positive integer"),
      ("alexnet", {"dropout_rate": 1.0}, "dropout_rate must be"),
  )
  def test_impossible_options(self, name, options, message):
    with self.assertRaisesRegex(ValueError, message):
      zoo.make_model(name, **options)

  def test_images_of_another_size(self):
    model = zoo.make_model("vgg", variant="tiny")
    with self.assertRaisesRegex(ValueError, "image_size=16.*32, 32, 3"):
      model.input_shapes(make_batch(32))


_THEIRS = {
    "kernel": "convolution.weight",
    "scale": "normalization.weight",
    "bias": "normalization.bias",
    "mean": "normalization.running_mean",
    "var": "normalization.running_var",
}


def from_peer(layer, tensors, like):
  """Returns arrays as those of a layer, from the tensors of the peer."""

  def find(path, _):
    owner, array = [entry.key for entry in path[-2:]]
    if layer == "head":
      theirs = "weight" if array == "kernel" else "bias"
      return tensors[f"classifier.1.{theirs}"].T
    start = "resnet.embedder.embedder"
    if layer != "stem":
      _, level, _, block = layer.split("_")
      start = f"resnet.encoder.stages.{level}.layers.{int(block)}."
      index = owner[-1]
      start += f"layer.{index}" if index.isdigit() else "shortcut"
    value = tensors[f"{start}.{_THEIRS[array]}"]
    return value.transpose(2, 3, 1, 0) if array == "kernel" else value

  return jax.tree_util.tree_map_with_path(find, like)


class PeerTest(parameterized.TestCase):
  """Importing the other libraries takes most of the time."""

  @parameterized.parameters(True, False)
  def test_resnet(self, train):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.ResNetConfig(
        embedding_size=8,
        hidden_sizes=[32, 64, 128],
        depths=[1, 2, 1],
        num_labels=10,
    )
    peer = transformers.ResNetForImageClassification(config).train(train)
    with torch.no_grad():
      for name, value in peer.state_dict().items():
        if value.dtype == torch.float32 and "normalization" in name:
          value.uniform_(0.5, 1.5)
    tensors = {k: v.numpy().copy() for k, v in peer.state_dict().items()}
    batch = make_batch()
    model = zoo.make_model(
        "resnet", depths=(1, 2, 1), width=8, image_size=SIZE, num_classes=10
    )
    variables = {
        name: v.replace(
            params=from_peer(name, tensors, v.params),
            stats=from_peer(name, tensors, v.stats),
        )
        for name, v in shapes_of(model).items()
    }
    pixels = (batch["images"] / 255.0 - images.MEAN) / images.STD
    out = peer(
        torch.tensor(pixels.transpose(0, 3, 1, 2), dtype=torch.float32),
        labels=torch.tensor(LABELS).long(),
    )
    out.loss.backward()
    theirs = {k: p.grad.numpy() for k, p in peer.named_parameters()}

    def mean_loss(params):
      logits, loss, stats = run(
          model, variables, batch, params=params, train=train
      )
      return loss.total / loss.weight, (logits, stats)

    params = {name: v.params for name, v in variables.items()}
    grads, (logits, stats) = jax.jit(jax.grad(mean_loss, has_aux=True))(params)
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
    close(logits, out.logits.detach().numpy())
    for name, grad in grads.items():
      jax.tree.map(close, grad, from_peer(name, theirs, grad))
    if train:  # Theirs corrects the variance for its bias, as ours does not.
      seen = peer.state_dict()
      name = "resnet.embedder.embedder.normalization.running_mean"
      close(stats["stem"]["batch_stats"]["norm"]["mean"], seen[name].numpy())
