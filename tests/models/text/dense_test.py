"""Each function with a backward pass of its own, against plain autodiff."""

from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np

from bamboo_jax.models.text import dense
from tests import plain


def plain_norm(x, scale, shift):
  x = x.astype(jnp.float32)
  centered = x - x.mean(-1, keepdims=True)
  variance = (centered**2).mean(-1, keepdims=True)
  return centered / jnp.sqrt(variance + 1e-5) * scale + shift


def plain_dense(x, weight, bias=None):
  return x @ weight + (0 if bias is None else bias)


CASES = {
    "norm": (dense.norm, plain_norm, ((6,), (6,))),
    "dense": (dense.dense, plain_dense, ((6, 8), (8,))),
    "dense_without_bias": (dense.dense, plain_dense, ((6, 8), None)),
    "norm_dense": (
        dense.norm_dense,
        lambda x, s, t, w, b: plain_dense(plain_norm(x, s, t), w, b),
        ((6,), (6,), (6, 8), (8,)),
    ),
    "gelu_dense": (
        dense.gelu_dense,
        lambda x, w, b: plain_dense(jax.nn.gelu(x), w.T, b),
        ((4, 6), (4,)),
    ),
}


def make_args(shapes, *, dtype="float32"):
  rng = np.random.default_rng(0)
  draw = lambda shape: None if shape is None else rng.normal(size=shape)
  cast = lambda x, dtype: None if x is None else jnp.asarray(x, dtype)
  args = [cast(draw(shape), jnp.float32) for shape in shapes]
  return [cast(draw((2, 3, 6)), dtype), *args]


def value_and_grads(function, args):
  def loss(args):
    out = function(*args).astype(jnp.float32)
    return (out * jnp.cos(jnp.arange(out.size)).reshape(out.shape)).sum(), out

  (_, out), grads = jax.jit(jax.value_and_grad(loss, has_aux=True))(args)
  return out, grads


class DenseTest(parameterized.TestCase):

  @parameterized.named_parameters((name, *case) for name, case in CASES.items())
  def test_equals_autodiff(self, function, plain_function, shapes):
    args = make_args(shapes)
    got = value_and_grads(function, args)
    want = value_and_grads(plain_function, args)
    self.assertLess(plain.relative_error(got[0], want[0]), 1e-6)
    self.assertLess(plain.relative_error(got[1], want[1]), 2e-6)

  @parameterized.named_parameters((name, *case) for name, case in CASES.items())
  def test_bfloat16_activations(self, function, plain_function, shapes):
    args = make_args(shapes, dtype="bfloat16")
    out, grads = value_and_grads(function, args)
    want = value_and_grads(plain_function, args)
    self.assertLess(plain.relative_error(out, want[0]), 2e-2)
    for grad, arg, want_grad in zip(grads, args, want[1], strict=True):
      if arg is not None:
        self.assertEqual((grad.shape, grad.dtype), (arg.shape, arg.dtype))
        grad, want_grad = np.float32(grad), np.float32(want_grad)
        self.assertLess(plain.relative_error(grad, want_grad), 2e-2)
