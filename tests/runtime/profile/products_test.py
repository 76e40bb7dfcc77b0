"""Products of a model: what its rate on a device is counted in."""

from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np
import optax

from bamboo_jax.models import zoo
from bamboo_jax.runtime.profile import products
from bamboo_jax.runtime.stage import spec as spec_lib


class FlopsTest(parameterized.TestCase):

  def test_of_gpt2(self):
    s, l, d, h, v = 3, 16, 32, 4, 50
    model = zoo.make_model(
        "gpt2", variant="tiny", num_blocks=2, width=d, num_heads=h, sequence_length=l, vocab_size=v
    )
    whole = spec_lib.StageSpec(model, 0, len(model.layers), model.batch_shapes(s), optax.sgd(0.1))
    attention = 2 * s * l * 4 * d * d + 2 * 2 * s * l * l * d
    mlp = 2 * s * l * 8 * d * d
    self.assertEqual(
        products.layer_flops(whole),
        {
            "embed": 0,
            "block_00.attention": attention,
            "block_00.mlp": mlp,
            "block_01.attention": attention,
            "block_01.mlp": mlp,
            "head": 2 * s * l * d * v,
        },
    )

  @parameterized.named_parameters(
      ("batched", lambda a: jnp.einsum("bij,bkj->bik", a, a), 2 * 4 * 6 * 6 * 5),
      ("scan", lambda a: jax.lax.scan(lambda c, x: (c, x @ c.T), a[0], a), 4 * 2 * 6 * 5 * 6),
      ("remat", jax.checkpoint(lambda a: a[0] @ a[1].T), 2 * 6 * 5 * 6),
      (
          "cond",
          lambda a: jax.lax.cond(a[0, 0, 0] > 0, lambda: a[0] @ a[1].T, lambda: jnp.zeros((6, 6))),
          2 * 6 * 5 * 6,
      ),
      (
          "conv",
          lambda a: jax.lax.conv(a[None], jnp.ones((7, 4, 3, 3)), (1, 1), "VALID"),
          2 * 7 * 4 * 3 * 4 * 9,
      ),
      ("elementwise", lambda a: jnp.tanh(a) * a, 0),
  )
  def test_of(self, function, want):
    shape = jax.ShapeDtypeStruct((4, 6, 5), jnp.float32)
    self.assertEqual(products.count_products(function, shape), want)

  def test_unknown_number_of_products(self):
    def loop(a):
      return jax.lax.while_loop(lambda a: a[0, 0] > 0, lambda a: a @ a, a)

    with self.assertRaisesRegex(ValueError, "unknown length"):
      products.count_products(loop, jax.ShapeDtypeStruct((2, 2), jnp.float32))
    jaxpr = jax.make_jaxpr(loop)(np.eye(2, dtype=np.float32))
    self.assertEqual(products.find_products(jaxpr, loop_length=3), [(3 * 16, 3 * 48)])
