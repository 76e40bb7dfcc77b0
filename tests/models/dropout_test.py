from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np

from bamboo_jax.models import dropout


class DropoutTest(parameterized.TestCase):

  @parameterized.parameters(0.1, 0.5, 0.9)
  def test_drops_at_the_rate_and_keeps_the_mean(self, rate):
    drop = lambda x: dropout.drop(x, jax.random.key(0), rate=rate)
    y, vjp = jax.vjp(drop, jnp.ones((101, 99)))
    self.assertAlmostEqual(float((y == 0).mean()), rate, delta=0.015)
    np.testing.assert_allclose(y[y != 0], 1 / (1 - rate), rtol=2e-4)
    self.assertAlmostEqual(float(y.mean()), 1.0, delta=0.1)
    np.testing.assert_array_equal(vjp(jnp.ones_like(y))[0], y)

  def test_no_key_means_no_dropout(self):
    x = jnp.ones((3,))
    self.assertIs(dropout.drop(x, None, rate=0.5), x)
