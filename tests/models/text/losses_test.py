import itertools

from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np

from bamboo_jax.models.text import losses
from tests import plain

T, D, V = 6, 4, 9


def plain_loss(h, weight, target):
  logp = jax.nn.log_softmax(h.astype(jnp.float32) @ weight)
  picked = jnp.take_along_axis(logp, jnp.maximum(target, 0)[..., None], -1)
  return -jnp.where(target >= 0, picked[..., 0], 0).sum()


plain_grads = jax.jit(jax.value_and_grad(plain_loss, argnums=(0, 1)))


def make_args(*, dtype="float32", scale=1.0):
  rng = np.random.default_rng(0)
  h = jnp.asarray(rng.normal(size=(2, T // 2, D)) * scale, dtype)
  weight = jnp.asarray(rng.normal(size=(D, V)), jnp.float32)
  target = jnp.asarray(rng.integers(0, V, (2, T // 2)), jnp.int32)
  return h, weight, target


class TokenLossTest(parameterized.TestCase):

  @parameterized.product(vocab_first=[False, True], chunk=[None, 1, 4, 9], padding=[0, 5])
  def test_equals_autodiff(self, vocab_first, chunk, padding):
    """Tokens of the padding count nothing."""

    def loss(h, weight, target):
      weight = weight.T if vocab_first else weight
      options = {"vocab_first": vocab_first, "chunk": chunk, "num_tokens": V if padding else None}
      loss = losses.token_loss(h, weight, target, **options)
      return 3 * loss.total, loss

    grad_fn = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))
    # Logits so large that exponentials overflow; targets that do not count.
    for scale, ignored in itertools.product((1.0, 1e4), (0, 2)):
      h, weight, target = make_args(scale=scale)
      target = target.at[0, :ignored].set(-1)
      padded = jnp.pad(weight, ((0, 0), (0, padding)), constant_values=3.0)
      (_, got), (grad_h, grad_weight) = grad_fn(h, padded, target)
      want, want_grads = plain_grads(h, weight, target)
      np.testing.assert_allclose(got.total, want, rtol=1e-6)
      self.assertEqual(got.weight, T - ignored)
      self.assertEqual(np.abs(grad_weight[:, V:]).sum(), 0.0)
      grads = grad_h, grad_weight[:, :V]
      for grad, want_grad in zip(grads, want_grads, strict=True):
        self.assertLess(plain.relative_error(grad, 3 * want_grad), 2e-6)

  @parameterized.parameters((None, True), (4, False))
  def test_chunks_keep_no_logits(self, chunk, has_logits):
    h, weight, target = make_args()
    loss = lambda h, w: losses.token_loss(h, w, target, vocab_first=False, chunk=chunk).total
    program = str(jax.make_jaxpr(jax.grad(loss, (0, 1)))(h, weight))
    self.assertEqual(f"[{T},{V}]" in program, has_logits)

  @parameterized.parameters(None, 4)
  def test_is_float32_of_bfloat16_activations(self, chunk):
    h, weight, target = make_args(dtype="bfloat16")
    loss = lambda h, w: losses.token_loss(h, w, target, vocab_first=False, chunk=chunk)
    got, vjp = jax.vjp(loss, h, weight)
    self.assertEqual((got.total.dtype, got.weight.dtype), (jnp.float32,) * 2)
    np.testing.assert_allclose(got.total, plain_loss(h, weight, target), rtol=1e-2)
    grad_h, grad_weight = vjp(jax.tree.map(jnp.ones_like, got))
    self.assertEqual(grad_h.dtype, jnp.bfloat16)
    self.assertEqual(grad_weight.dtype, jnp.float32)
