"""Dropout that is cheap to draw and to keep.

A mask takes 16 random bits per element (two elements per word of the generator)
and is kept as one byte each. The rate is rounded to a multiple of 2**-16; kept
elements are scaled by the exact inverse, so the mean is right.
"""

import functools
import math

import jax
import jax.numpy as jnp

_LEVELS = 1 << 16


def drop(x: jax.Array, key: jax.Array | None, *, rate: float) -> jax.Array:
  """Returns `x` with elements dropped; `x` itself if `key` is None."""
  if key is None:
    return x
  return _drop(rate, x, keep_mask(key, x.shape, rate=rate))


def keep_mask(key: jax.Array, shape: tuple[int, ...], *, rate: float) -> jax.Array:
  """Returns a bool array of `shape`, true with probability 1 - `rate`."""
  size = math.prod(shape)
  words = jax.random.bits(key, (-(-size // 2),), jnp.uint32)
  draws = jax.lax.bitcast_convert_type(words, jnp.uint16).reshape(-1)
  return (draws[:size] >= _num_dropped(rate)).reshape(shape)


def apply_mask(x: jax.Array, mask: jax.Array, *, rate: float) -> jax.Array:
  """Returns `x` scaled where `mask` is true and 0 elsewhere."""
  scale = _LEVELS / (_LEVELS - _num_dropped(rate))
  return jnp.where(mask, x * jnp.asarray(scale, x.dtype), 0)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _drop(rate: float, x: jax.Array, mask: jax.Array) -> jax.Array:
  return apply_mask(x, mask, rate=rate)


_drop.defvjp(
    lambda rate, x, mask: (_drop(rate, x, mask), mask),
    lambda rate, mask, grad: (apply_mask(grad, mask, rate=rate), None),
)


def _num_dropped(rate: float) -> int:
  """Returns the number of the `_LEVELS` 16-bit values that mean a drop."""
  return min(round(rate * _LEVELS), _LEVELS - 1)
