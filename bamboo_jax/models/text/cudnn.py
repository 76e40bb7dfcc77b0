"""Causal attention by cuDNN, which keeps no scores; for lowering on GPUs.

`jax.nn.dot_product_attention` asks for cuDNN when it is traced. A program here
is traced once for all platforms, so this takes the operations behind it, which
are private to JAX.

Dimension key: see `attention`; G is the number of heads of keys and values.
"""

from typing import Any

import jax
from jax._src.cudnn import fused_attention_stablehlo as fused
import jax.numpy as jnp

Array = jax.Array
# Names of the operations; a program that has one is fused on GPUs.
PRIMITIVES = (
    fused._dot_product_attention_fwd_p_wrapper.name,
    fused._dot_product_attention_bwd_p_wrapper.name,
)
_MIN_LENGTH = 256  # A shorter sequence has small scores.
_MAX_WIDTH = 128  # Of a head, on GPUs before H100.
_SEED = 42  # Of dropout, which there is none of.


def supports(dtype: Any, length: int, width: int) -> bool:
  """Returns whether attention of such heads is by cuDNN, on CUDA."""
  fits = width % 8 == 0 and width <= _MAX_WIDTH
  return dtype == jnp.bfloat16 and fits and length > _MIN_LENGTH


def forward(q_SLHK: Array, k_SLGK: Array, v_SLGK: Array) -> tuple[Array, Array]:
  """Returns attention, and the log-sum-exp of its scores, float32 [S, H, L]."""
  out_SLHK, sums_SHL = fused._dot_product_attention_fwd_p_wrapper.bind(
      *_arguments(q_SLHK, k_SLGK, v_SLGK), **_options(q_SLHK), is_training=True
  )
  return out_SLHK, sums_SHL


def backward(
    q_SLHK: Array, k_SLGK: Array, v_SLGK: Array, sums_SHL: Array, out_SLHK: Array, grad_SLHK: Array
) -> tuple[Array, Array, Array]:
  """Returns the gradients of queries, keys and values."""
  grad_q, grad_k, grad_v = fused._dot_product_attention_bwd_p_wrapper.bind(
      *_arguments(q_SLHK, k_SLGK, v_SLGK), *(sums_SHL, out_SLHK, grad_SLHK), **_options(q_SLHK)
  )
  return grad_q, grad_k, grad_v


@jax.custom_vjp
def attend(q_SLHK: Array, k_SLGK: Array, v_SLGK: Array) -> Array:
  """Returns attention; by JAX's kernel on platforms other than CUDA.

  Both backward passes recompute the scores, so that residuals do not depend on
  the platform.
  """
  return _attend_forward(q_SLHK, k_SLGK, v_SLGK)[0]


def _by_xla(q_SLHK: Array, k_SLGK: Array, v_SLGK: Array) -> Array:
  return jax.nn.dot_product_attention(q_SLHK, k_SLGK, v_SLGK, is_causal=True, implementation="xla")


def _attend_forward(*heads: Array) -> tuple[Array, tuple[Array, ...]]:
  num_examples, length, num_heads, _ = heads[0].shape
  sums = (num_examples, num_heads, length)
  out_SLHK, sums_SHL = jax.lax.platform_dependent(
      *heads, cuda=forward, default=lambda *heads: (_by_xla(*heads), jnp.zeros(sums))
  )
  return out_SLHK, (*heads, sums_SHL, out_SLHK)


def _attend_backward(kept: tuple[Array, ...], grad_SLHK: Array) -> tuple[Array, Array, Array]:
  return jax.lax.platform_dependent(
      *(*kept, grad_SLHK),
      cuda=backward,
      default=lambda *given: jax.vjp(_by_xla, *given[:3])[1](given[-1]),
  )


attend.defvjp(_attend_forward, _attend_backward)


def _arguments(*heads: Array) -> tuple[Array, ...]:
  """Returns the operands: no bias, lengths, offsets or pages."""
  return (*heads, *[jnp.zeros(0, heads[0].dtype)] * 7)


def _options(q_SLHK: Array) -> dict[str, Any]:
  return dict(
      scale=q_SLHK.shape[-1] ** -0.5,
      seed=_SEED,
      dropout_rate=0.0,
      variadic_args=(False, False),
      mask_type=fused.MaskType.CAUSAL,
      layout=fused.AttentionLayout.BTNH.value,
      sliding_window_length=None,
  )
