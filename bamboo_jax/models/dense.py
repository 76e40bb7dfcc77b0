"""Matrix products that keep little for their backward pass.

Plain autodiff keeps what it happens to compute: the normalised activations, the
several factors of GELU, and, in mixed precision, a cast copy of every weight
for each microbatch. The functions here keep their inputs, which the layer
before or the stage keeps anyway, and compute the rest again; that costs one
pass over the activations, where a product costs hundreds.

Weights and biases are float32; products run in the dtype of the activations,
norms and gradients of parameters in float32.

Dimension key:
  T: any leading dimensions, such as examples by tokens
  D: width of the input
  E: width of the output
"""

import functools

import jax
import jax.numpy as jnp

_NORM_EPSILON = 1e-5


@jax.custom_vjp
def dense(
    x_TD: jax.Array, weight_DE: jax.Array, bias_E: jax.Array | None
) -> jax.Array:
  """Returns `x_TD @ weight_DE + bias_E`, in the dtype of `x_TD`."""
  return _product(x_TD, weight_DE, bias_E)


def _dense_forward(x_TD, weight_DE, bias_E):
  return _product(x_TD, weight_DE, bias_E), (x_TD, weight_DE, bias_E)


def _dense_backward(kept, grad_TE):
  x_TD, weight_DE, bias_E = kept
  return (
      _grad_input(grad_TE, weight_DE),
      _grad_weight(x_TD, grad_TE),
      _grad_bias(bias_E, grad_TE),
  )


dense.defvjp(_dense_forward, _dense_backward)


@jax.custom_vjp
def norm_dense(
    x_TD: jax.Array,
    scale_D: jax.Array,
    shift_D: jax.Array,
    weight_DE: jax.Array,
    bias_E: jax.Array | None,
) -> jax.Array:
  """Returns `dense` of the layer norm of `x_TD`."""
  return _norm_dense_forward(x_TD, scale_D, shift_D, weight_DE, bias_E)[0]


def _norm_dense_forward(x_TD, scale_D, shift_D, weight_DE, bias_E):
  mean_T, rstd_T = moments(x_TD)
  y_TD = normalize(x_TD, mean_T, rstd_T) * scale_D + shift_D
  out_TE = _product(y_TD.astype(x_TD.dtype), weight_DE, bias_E)
  return out_TE, (x_TD, mean_T, rstd_T, scale_D, shift_D, weight_DE, bias_E)


def _norm_dense_backward(kept, grad_TE):
  x_TD, mean_T, rstd_T, scale_D, shift_D, weight_DE, bias_E = kept
  xhat_TD = normalize(x_TD, mean_T, rstd_T)
  y_TD = (xhat_TD * scale_D + shift_D).astype(x_TD.dtype)
  grad_y_TD = _grad_input(grad_TE, weight_DE)
  return (
      *norm_grads(xhat_TD, rstd_T, scale_D, grad_y_TD),
      _grad_weight(y_TD, grad_TE),
      _grad_bias(bias_E, grad_TE),
  )


norm_dense.defvjp(_norm_dense_forward, _norm_dense_backward)


@jax.custom_vjp
def norm(x_TD: jax.Array, scale_D: jax.Array, shift_D: jax.Array) -> jax.Array:
  """Returns the layer norm of `x_TD`, in its dtype."""
  return _norm_forward(x_TD, scale_D, shift_D)[0]


def _norm_forward(x_TD, scale_D, shift_D):
  mean_T, rstd_T = moments(x_TD)
  y_TD = normalize(x_TD, mean_T, rstd_T) * scale_D + shift_D
  return y_TD.astype(x_TD.dtype), (x_TD, mean_T, rstd_T, scale_D)


def _norm_backward(kept, grad_TD):
  x_TD, mean_T, rstd_T, scale_D = kept
  xhat_TD = normalize(x_TD, mean_T, rstd_T)
  return norm_grads(xhat_TD, rstd_T, scale_D, grad_TD)


norm.defvjp(_norm_forward, _norm_backward)


@jax.custom_vjp
def gelu_dense(
    x_TD: jax.Array, weight_DE: jax.Array, bias_E: jax.Array | None
) -> jax.Array:
  """Returns `dense` of GELU (tanh approximation) of `x_TD`."""
  return _product(jax.nn.gelu(x_TD), weight_DE, bias_E)


def _gelu_dense_forward(x_TD, weight_DE, bias_E):
  return gelu_dense(x_TD, weight_DE, bias_E), (x_TD, weight_DE, bias_E)


def _gelu_dense_backward(kept, grad_TE):
  x_TD, weight_DE, bias_E = kept
  y_TD, gelu_vjp = jax.vjp(jax.nn.gelu, x_TD)
  (grad_x_TD,) = gelu_vjp(_grad_input(grad_TE, weight_DE))
  return (
      grad_x_TD,
      _grad_weight(y_TD, grad_TE),
      _grad_bias(bias_E, grad_TE),
  )


gelu_dense.defvjp(_gelu_dense_forward, _gelu_dense_backward)


def moments(x_TD: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Returns mean and inverse standard deviation over D, float32."""
  x_TD = x_TD.astype(jnp.float32)
  mean_T = x_TD.mean(-1)
  var_T = jnp.square(x_TD - mean_T[..., None]).mean(-1)
  return mean_T, jax.lax.rsqrt(var_T + _NORM_EPSILON)


def normalize(
    x_TD: jax.Array, mean_T: jax.Array, rstd_T: jax.Array
) -> jax.Array:
  """Returns `x_TD` with the given moments removed, float32."""
  return (x_TD.astype(jnp.float32) - mean_T[..., None]) * rstd_T[..., None]


def norm_grads(
    xhat_TD: jax.Array,
    rstd_T: jax.Array,
    scale_D: jax.Array,
    grad_TD: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Returns the gradients of a layer norm's input, scale and shift.

  Args:
    xhat_TD: Normalised input, float32.
    rstd_T: Inverse standard deviation of the input.
    scale_D: Scale of the norm.
    grad_TD: Gradient of the output.
  """
  rows = tuple(range(grad_TD.ndim - 1))
  grad32_TD = grad_TD.astype(jnp.float32)
  scaled_TD = grad32_TD * scale_D
  mean_T = scaled_TD.mean(-1, keepdims=True)
  along_T = (scaled_TD * xhat_TD).mean(-1, keepdims=True)
  grad_x_TD = (scaled_TD - mean_T - xhat_TD * along_T) * rstd_T[..., None]
  return (
      grad_x_TD.astype(grad_TD.dtype),
      (grad32_TD * xhat_TD).sum(rows),
      grad32_TD.sum(rows),
  )


def _product(x_TD, weight_DE, bias_E):
  out_TE = jnp.einsum("...d,de->...e", x_TD, weight_DE.astype(x_TD.dtype))
  return out_TE if bias_E is None else out_TE + bias_E.astype(x_TD.dtype)


def _grad_input(grad_TE, weight_DE):
  return jnp.einsum("...e,de->...d", grad_TE, weight_DE.astype(grad_TE.dtype))


def _grad_weight(x_TD, grad_TE):
  flat = lambda a: a.reshape(-1, a.shape[-1])
  return jnp.einsum(
      "td,te->de",
      flat(x_TD),
      flat(grad_TE),
      preferred_element_type=jnp.float32,
  )


def _grad_bias(bias_E, grad_TE):
  if bias_E is None:
    return None
  return grad_TE.astype(jnp.float32).sum(tuple(range(grad_TE.ndim - 1)))
