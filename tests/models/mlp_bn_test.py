"""A layer with statistics, whose inputs are a tree, fits the protocol."""

from absl.testing import absltest
import jax
import jax.numpy as jnp
import numpy as np

from bamboo_jax.models import model as model_lib, zoo

MOMENTUM = 0.9
NAME = "block_00"


class BatchNormTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.model = zoo.make_model("tests.mlp_bn:make_mlp_bn", num_blocks=1)
    rng = np.random.default_rng(0)
    self.batches = [
        {key: jnp.asarray(rng.integers(0, 32, (2, 8)), jnp.int32) for key in ("inputs", "targets")}
        for _ in range(3)
    ]
    variables = {
        name: self.model.init_layer(i, seed=0, batch_shapes=self.batches[0])
        for i, name in enumerate(self.model.layer_names)
    }
    self.params = {name: v.params for name, v in variables.items()}
    self.stats = {name: v.stats for name, v in variables.items()}

  def run_layers(self, first, last, inputs, batch, *, train):
    return model_lib.apply_range(
        self.model, first, last, self.params, self.stats, inputs, batch, key=None, train=train
    )

  def test_mean_of_statistics_is_one_update_with_the_mean_of_batches(self):
    updated, means, variances = [], [], []
    for batch in self.batches:
      inputs, _ = self.run_layers(0, 1, None, batch, train=True)
      dense = self.params[NAME]["Dense_0"]
      h = inputs["h"] @ dense["kernel"] + dense["bias"]
      means.append(h.mean((0, 1)))
      variances.append(h.var((0, 1)))
      _, stats = self.run_layers(1, 2, inputs, batch, train=True)
      updated.append(stats[NAME]["batch_stats"]["BatchNorm_0"])
    old = self.stats[NAME]["batch_stats"]["BatchNorm_0"]
    mean_of = lambda arrays: sum(arrays) / len(arrays)
    for key, seen in (("mean", means), ("var", variances)):
      np.testing.assert_allclose(
          mean_of([stats[key] for stats in updated]),
          MOMENTUM * old[key] + (1 - MOMENTUM) * mean_of(seen),
          rtol=1e-5,
          atol=1e-7,
      )

  def test_evaluation_uses_statistics_and_leaves_them(self):
    """So the loss of an example does not depend on the others."""
    evaluate = jax.jit(lambda batch: self.run_layers(0, 3, None, batch, train=False))
    batch, swapped = dict(self.batches[0]), dict(self.batches[1])
    losses = []
    for other in (batch, swapped):
      mixed = {k: jnp.stack([v[0], other[k][1]]) for k, v in batch.items()}
      twice = {k: jnp.stack([v[1], v[1]]) for k, v in other.items()}
      loss, stats = evaluate(mixed)
      losses.append(loss.total - evaluate(twice)[0].total / 2)
      jax.tree.map(np.testing.assert_array_equal, stats, self.stats)
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
