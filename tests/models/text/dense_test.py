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

  @parameterized.product(name=[*CASES], dtype=["float32", "bfloat16"])
  def test_equals_autodiff(self, name, dtype):
    function, plain_function, shapes = CASES[name]
    args = make_args(shapes, dtype=dtype)
    out, grads = value_and_grads(function, args)
    want, want_grads = value_and_grads(plain_function, args)
    most, most_of_grads = dict(float32=(1e-6, 2e-6), bfloat16=(2e-2, 2e-2))[dtype]
    self.assertLess(plain.relative_error(out, want), most)
    for grad, arg, want_grad in zip(grads, args, want_grads, strict=True):
      if arg is not None:
        self.assertEqual((grad.shape, grad.dtype), (arg.shape, arg.dtype))
        grad, want_grad = np.float32(grad), np.float32(want_grad)
        self.assertLess(plain.relative_error(grad, want_grad), most_of_grads)
