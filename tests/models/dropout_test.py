from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np

from bamboo_jax.models import dropout


class DropoutTest(parameterized.TestCase):

  @parameterized.parameters(0.1, 0.5, 0.9)
  def test_drops_at_the_rate_and_keeps_the_mean(self, rate):
    y = dropout.drop(jnp.ones((101, 99)), jax.random.key(0), rate=rate)
    self.assertAlmostEqual(float((y == 0).mean()), rate, delta=0.015)
    np.testing.assert_allclose(y[y != 0], 1 / (1 - rate), rtol=2e-4)
    self.assertAlmostEqual(float(y.mean()), 1.0, delta=0.1)

  def test_depends_on_the_key_only(self):
    masks = [dropout.keep_mask(jax.random.key(seed), (64,), rate=0.5) for seed in (0, 0, 1)]
    np.testing.assert_array_equal(masks[0], masks[1])
    self.assertFalse(np.array_equal(masks[0], masks[2]))

  def test_keeps_one_byte_per_element(self):
    x = jnp.arange(6.0).reshape(2, 3) + 1
    y, vjp = jax.vjp(lambda x: dropout.drop(x, jax.random.key(1), rate=0.5), x)
    (kept,) = vjp.opaque_residuals
    self.assertEqual((kept.shape, kept.dtype), ((2, 3), jnp.bool_))
    np.testing.assert_array_equal(vjp(jnp.ones_like(y))[0], y / x)

  def test_no_key_means_no_dropout(self):
    x = jnp.ones((3,))
    self.assertIs(dropout.drop(x, None, rate=0.5), x)
