"""Greedy translation agrees with the probabilities of training."""

import functools

from absl.testing import absltest
import jax
import numpy as np

from bamboo_jax.models import model as model_lib
from bamboo_jax.reproductions.paper_models import greedy
from tests.reproductions.paper_models import gnmt_test


@functools.cache
def translate():
  """Returns model, variables, sources, and their translations."""
  model, variables = gnmt_test.make_model()
  variables = jax.tree.map(lambda a: 4 * a, variables)
  source = np.random.default_rng(0).integers(1, gnmt_test.V, (64, gnmt_test.L))
  source[:, -1] = 0
  found = jax.jit(functools.partial(greedy.translate, model))(variables, source)
  return model, variables, source, np.asarray(found)


class GreedyTest(absltest.TestCase):

  def test_each_token_is_the_most_likely_after_those_before(self):
    model, variables, source, found = translate()
    inputs = np.concatenate([np.zeros((64, 1), int), found[:, :-1]], axis=1)
    params = {name: v.params for name, v in variables.items()}
    (_, hidden), _ = model_lib.apply_range(
        *(model, 0, len(model.layers) - 1, params, dict.fromkeys(params, {})),
        *(None, {"source": source, "inputs": inputs}),
        key=None,
        train=False,
    )
    likely = (hidden @ params["head"]["weight"]).argmax(-1)
    counts = np.cumsum(found == 0, axis=1) - (found == 0) == 0
    np.testing.assert_array_equal(found[counts], likely[counts])
    self.assertEqual(found.shape, (64, gnmt_test.L))

  def test_nothing_follows_the_end(self):
    _, _, _, found = translate()
    ended = np.cumsum(found == 0, axis=1) > 0
    self.assertTrue(0 < ended[:, -2].sum() < 64, found)
    np.testing.assert_array_equal(found[ended], 0)

  def test_sources_have_translations_of_their_own(self):
    self.assertGreater(len(np.unique(translate()[3], axis=0)), 8)
