import functools

from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np

from bamboo_jax.reproductions.paper_models import gnmt
from tests import plain

L, V = 8, 20
TINY = dict(num_layers=3, width=12, sequence_length=L, vocab_size=V, dropout_rate=0.0)


def make_batch():
  source = np.array([[5, 6, 7, 0, 0, 0, 0, 0], [9, 8, 7, 6, 5, 4, 3, 0]], np.int32)
  return {"source": source, "inputs": source, "targets": source}


@functools.cache
def make_model():
  """Returns a model, and random variables."""
  model = gnmt.make_gnmt(**TINY)
  rng = np.random.default_rng(1)
  make = lambda a: jnp.asarray(rng.normal(0, 0.5, a.shape), a.dtype)
  return model, jax.tree.map(make, model.variable_shapes())


@functools.partial(jax.jit, static_argnums=1)
def run_layers(batch, last):
  model, variables = make_model()
  params = {name: v.params for name, v in variables.items()}
  return plain.run_layers(model, params, batch, last=last)


class GnmtTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.model, self.variables = make_model()

  def loss(self, batch):
    return float(run_layers(batch, len(self.model.layers)).total)

  @parameterized.parameters(
      ("16", True, 243_865_601), ("tiny", True, 68_289), ("tiny", False, 76_481)
  )
  def test_number_of_parameters(self, variant, tied, expected):
    self.assertEqual(gnmt.make_gnmt(variant=variant, tied=tied).num_params(), expected)

  def test_what_follows_the_end_of_the_source_does_not_matter(self):
    batch = make_batch()
    changed = {**batch, "source": batch["source"].copy()}
    changed["source"][0, 4:] = 11
    before = self.loss(batch)
    self.assertAlmostEqual(self.loss(changed), before, places=5)
    changed["source"][0, 2] = 11
    self.assertGreater(abs(self.loss(changed) - before), 1e-4)

  def test_the_context_goes_up_unchanged(self):
    batch = make_batch()
    first = self.model.layer_names.index("decoder_00") + 1
    below = run_layers(batch, first)[0]
    np.testing.assert_array_equal(below, run_layers(batch, len(self.model.layers) - 1)[0])

  def test_impossible_options(self):
    with self.assertRaisesRegex(ValueError, "num_layers must be at least 2"):
      gnmt.make_gnmt(num_layers=1)

  def test_greedy_translation(self):  # Compiles, 3 s.
    variables = jax.tree.map(lambda a: 4 * a, self.variables)
    source = np.random.default_rng(0).integers(1, V, (64, L))
    source[:, -1] = 0
    translate = jax.jit(functools.partial(gnmt.translate, self.model))
    found = np.asarray(translate(variables, source))
    # Each token is the most likely one after those before it.
    inputs = np.concatenate([np.zeros((64, 1), int), found[:, :-1]], axis=1)
    params = {name: v.params for name, v in variables.items()}
    batch = {"source": source, "inputs": inputs}
    _, hidden = plain.run_layers(self.model, params, batch, last=len(self.model.layers) - 1)
    likely = (hidden @ params["head"]["weight"]).argmax(-1)
    counts = np.cumsum(found == 0, axis=1) - (found == 0) == 0
    np.testing.assert_array_equal(found[counts], likely[counts])
    # Nothing follows the end, and sources have translations of their own.
    ended = np.cumsum(found == 0, axis=1) > 0
    self.assertTrue(0 < ended[:, -2].sum() < 64, found)
    np.testing.assert_array_equal(found[ended], 0)
    self.assertGreater(len(np.unique(found, axis=0)), 8)
