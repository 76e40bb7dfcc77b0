"""Packed documents: the loss of each is that of the document alone."""

from absl.testing import parameterized
import chex
import jax
import jax.numpy as jnp
import numpy as np

from bamboo_jax.models import zoo
from tests import plain

_LENGTHS = (5, 1, 7)
_SIZE = 16
_MODELS = {
    "bert": dict(dropout_rate=0.0, num_masked=len(_LENGTHS)),
    "gpt2": dict(dropout_rate=0.0),
    "gpt2_xla": dict(dropout_rate=0.0, attention="xla"),
    # Llama reads documents in the same function.
    "qwen": dict(num_kv_heads=1, head_width=8, hidden_width=24),
}


class DocumentsTest(parameterized.TestCase):

  @parameterized.parameters(*_MODELS)
  def test_each_is_as_alone(self, name):
    model = zoo.make_model(
        name.removesuffix("_xla"),
        variant="tiny",
        num_blocks=1,
        width=16,
        num_heads=2,
        vocab_size=20,
        sequence_length=_SIZE,
        documents=True,
        **_MODELS[name],
    )
    shapes = model.batch_shapes(1)
    params = {
        layer: model.init_layer(i, seed=0, batch_shapes=shapes).params
        for i, layer in enumerate(model.layer_names)
    }
    rng = np.random.default_rng(0)
    tokens = [rng.integers(0, 20, length + 1) for length in _LENGTHS]

    @jax.jit
    def run(params, batch):
      total = lambda params: plain.run_layers(model, params, batch, train=True).total
      return jax.value_and_grad(total)(params)

    make = _make_masked if name == "bert" else _make_batch
    alone = [run(params, make([one])) for one in tokens]
    total = jax.tree.map(lambda *parts: sum(parts), *alone)
    chex.assert_trees_all_close(run(params, make(tokens)), total, rtol=2e-5, atol=2e-5)
    least = 2.0 if name == "bert" else 7.0  # Of one token, or of 7.
    self.assertGreater(float(alone[2][0]), least)


def _make_batch(documents):
  """Returns one sample with the documents and padding."""
  batch = {
      "inputs": np.zeros((1, _SIZE), np.int32),
      "targets": np.full((1, _SIZE), -1, np.int32),
      "documents": np.zeros((1, _SIZE), np.int32),
      "segments": np.zeros((1, _SIZE), np.int32),
      "places": np.zeros((1, len(_LENGTHS)), np.int32),
  }
  at = 0
  for number, tokens in enumerate(documents, start=1):
    place = slice(at, at + len(tokens) - 1)
    batch["inputs"][0, place] = tokens[:-1]
    batch["targets"][0, place] = tokens[1:]
    batch["documents"][0, place] = number
    at = place.stop
  return jax.tree.map(jnp.asarray, batch)


def _make_masked(documents):
  """Returns the same, with the last token of each document to predict."""
  batch = {k: np.array(v) for k, v in _make_batch(documents).items()}
  ends = np.cumsum([len(tokens) - 1 for tokens in documents])
  batch["targets"] = np.full((1, len(_LENGTHS)), -1, np.int32)
  batch["targets"][0, : len(ends)] = [tokens[-1] for tokens in documents]
  batch["places"][0, : len(ends)] = ends - 1
  return jax.tree.map(jnp.asarray, batch)
