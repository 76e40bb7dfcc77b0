"""Norms and matrix products that keep little for their backward pass.

Plain autodiff keeps normalised activations, the factors of GELU and, in mixed
precision, a cast copy of every weight per microbatch. These functions keep only
their inputs, which the previous layer or the stage keeps anyway. Recomputation
costs one pass over the activations, where a product costs hundreds.

Weights, biases, norms and gradients of parameters are float32; products run in
the dtype of the activations. A weight is stored with its narrower side first,
as [in, out] or [out, in]: its gradient is then the product of the transposed
narrower factor and the wider one, the fastest way on a CPU.

Dimension key:

  T: any leading dimensions, such as examples by tokens
  D: width of the input
  E: width of the output
"""

import math
from typing import Any

import jax
import jax.numpy as jnp

_NORM_EPSILON = 1e-5
_GELU_SCALE = math.sqrt(2 / math.pi)
_GELU_CUBIC = 0.044715

Array = jax.Array
MaybeArray = Array | None
Arrays = tuple[MaybeArray, ...]
Moments = tuple[Array, Array]


@jax.custom_vjp
def norm(x_TD: Array, scale_D: Array, shift_D: Array) -> Array:
  """Returns the layer norm of `x_TD`, in its dtype."""
  return _norm_forward(x_TD, scale_D, shift_D)[0]


def _norm_forward(x_TD: Array, scale_D: Array, shift_D: Array) -> tuple[Array, Any]:
  moments = _moments(x_TD)
  y_TD = _normalize(x_TD, moments, scale_D, shift_D)
  return y_TD, (x_TD, moments, scale_D)


def _norm_backward(kept: Any, grad_TD: Array) -> tuple[Array, Array, Array]:
  """Returns gradients of the input, the scale and the shift."""
  x_TD, moments, scale_D = kept
  x_hat_TD = _standardize(x_TD, moments)
  grad32_TD = grad_TD.astype(jnp.float32)
  scaled_TD = grad32_TD * scale_D
  mean_T = scaled_TD.mean(-1, keepdims=True)
  along_T = (scaled_TD * x_hat_TD).mean(-1, keepdims=True)
  grad_x_TD = (scaled_TD - mean_T - x_hat_TD * along_T) * moments[1][..., None]
  return (grad_x_TD.astype(x_TD.dtype), _sum_rows(grad32_TD * x_hat_TD), _sum_rows(grad32_TD))


norm.defvjp(_norm_forward, _norm_backward)


@jax.custom_vjp
def dense(x_TD: Array, weight_DE: Array, bias_E: MaybeArray) -> Array:
  """Returns `x_TD @ weight_DE + bias_E`; best if E is at least D."""
  return _add_bias(_multiply(x_TD, weight_DE), bias_E)


def _dense_backward(kept: Any, grad_TE: Array) -> tuple[Array, Array, MaybeArray]:
  x_TD, weight_DE, bias_E = kept
  return (
      _multiply_transposed(grad_TE, weight_DE),
      _outer(x_TD, grad_TE),
      None if bias_E is None else _sum_rows(grad_TE),
  )


dense.defvjp(lambda *inputs: (dense(*inputs), inputs), _dense_backward)


@jax.custom_vjp
def norm_dense(
    x_TD: Array, scale_D: Array, shift_D: Array, weight_DE: Array, bias_E: MaybeArray
) -> Array:
  """Returns `dense` of `norm` of `x_TD`; keeps only `x_TD` and its moments."""
  return _norm_dense_forward(x_TD, scale_D, shift_D, weight_DE, bias_E)[0]


def _norm_dense_forward(
    x_TD: Array, scale_D: Array, shift_D: Array, *dense: Any
) -> tuple[Array, Any]:
  y_TD, kept = _norm_forward(x_TD, scale_D, shift_D)
  weight_DE, bias_E = dense
  return _add_bias(_multiply(y_TD, weight_DE), bias_E), (*kept, shift_D, *dense)


def _norm_dense_backward(kept: Any, grad_TE: Array) -> Arrays:
  x_TD, moments, scale_D, shift_D, *dense = kept
  y_TD = _normalize(x_TD, moments, scale_D, shift_D)
  grad_y_TD, *grads = _dense_backward((y_TD, *dense), grad_TE)
  return (*_norm_backward((x_TD, moments, scale_D), grad_y_TD), *grads)


norm_dense.defvjp(_norm_dense_forward, _norm_dense_backward)


@jax.custom_vjp
def gelu_dense(x_TD: Array, weight_ED: Array, bias_E: MaybeArray) -> Array:
  """Returns `gelu(x_TD) @ weight_ED.T + bias_E` (tanh GELU); best if D >= E."""
  y_TD = _gelu(x_TD, _gelu_tanh(x_TD))
  return _add_bias(_multiply_transposed(y_TD, weight_ED), bias_E)


def _gelu_dense_backward(kept: Any, grad_TE: Array) -> Arrays:
  x_TD, weight_ED, bias_E = kept
  tanh_TD = _gelu_tanh(x_TD)
  slope_TD = _gelu_slope(x_TD, tanh_TD)
  return (
      (_multiply(grad_TE, weight_ED) * slope_TD).astype(x_TD.dtype),
      _outer(grad_TE, _gelu(x_TD, tanh_TD)),
      None if bias_E is None else _sum_rows(grad_TE),
  )


gelu_dense.defvjp(lambda *inputs: (gelu_dense(*inputs), inputs), _gelu_dense_backward)


def _gelu_tanh(x_TD: Array) -> Array:
  """Returns the tanh in GELU, float32; see `jax.nn.gelu` for the formula."""
  x_TD = x_TD.astype(jnp.float32)
  return jnp.tanh(_GELU_SCALE * (x_TD + _GELU_CUBIC * (x_TD * x_TD * x_TD)))


def _gelu(x_TD: Array, tanh_TD: Array) -> Array:
  return (0.5 * x_TD * (1 + tanh_TD)).astype(x_TD.dtype)


def _gelu_slope(x_TD: Array, tanh_TD: Array) -> Array:
  """Returns the derivative of GELU, float32."""
  x_TD = x_TD.astype(jnp.float32)
  inner_TD = _GELU_SCALE * (1 + 3 * _GELU_CUBIC * (x_TD * x_TD))
  return 0.5 * (1 + tanh_TD + x_TD * (1 - tanh_TD * tanh_TD) * inner_TD)


def transpose(x: Array) -> Array:
  """Returns the transpose of a matrix, materialised on a CPU.

  XLA:CPU has no fast product whose left factor is read by columns, and would
  fold the transpose into such a product.
  """
  return jax.lax.platform_dependent(
      x, cpu=lambda a: jax.lax.optimization_barrier(a.T), default=lambda a: a.T
  )


def _moments(x_TD: Array) -> Moments:
  """Returns mean and inverse standard deviation over D, float32."""
  x_TD = x_TD.astype(jnp.float32)
  mean_T = x_TD.mean(-1)
  var_T = jnp.square(x_TD - mean_T[..., None]).mean(-1)
  return mean_T, jax.lax.rsqrt(var_T + _NORM_EPSILON)


def _standardize(x_TD: Array, moments: Moments) -> Array:
  mean_T, rstd_T = moments
  return (x_TD.astype(jnp.float32) - mean_T[..., None]) * rstd_T[..., None]


def _normalize(x_TD: Array, moments: Moments, scale_D: Array, shift_D: Array) -> Array:
  y_TD = _standardize(x_TD, moments) * scale_D + shift_D
  return y_TD.astype(x_TD.dtype)


def _multiply(x_TD: Array, weight_DE: Array) -> Array:
  out = _rows(x_TD) @ weight_DE.astype(x_TD.dtype)
  return out.reshape(*x_TD.shape[:-1], -1)


def _multiply_transposed(x_TE: Array, weight_DE: Array) -> Array:
  out = _rows(x_TE) @ weight_DE.astype(x_TE.dtype).T
  return out.reshape(*x_TE.shape[:-1], -1)


def _outer(narrow_TD: Array, wide_TE: Array) -> Array:
  """Returns the gradient of a weight, float32 [D, E]."""
  return jnp.matmul(transpose(_rows(narrow_TD)), _rows(wide_TE), preferred_element_type=jnp.float32)


def _sum_rows(x_TD: Array) -> Array:
  return _rows(x_TD).astype(jnp.float32).sum(0)


def _add_bias(x_TE: Array, bias_E: MaybeArray) -> Array:
  return x_TE if bias_E is None else x_TE + bias_E.astype(x_TE.dtype)


def _rows(x_TD: Array) -> Array:
  return x_TD.reshape(-1, x_TD.shape[-1])
