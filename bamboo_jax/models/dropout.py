"""Dropout that is cheap to draw and to keep.

A mask takes 16 random bits per element, so one hash of the generator serves two
elements, and is kept for the backward pass as one byte per element. The rate is
thereby rounded to a multiple of 2**-16; outputs are scaled by the exact inverse
of the rounded rate, so their mean is right.
"""

import math

import jax
import jax.numpy as jnp

_LEVELS = 1 << 16


def keep_mask(
    key: jax.Array, shape: tuple[int, ...], *, rate: float
) -> jax.Array:
  """Returns a bool array of `shape`, true with probability 1 - `rate`."""
  size = math.prod(shape)
  words = jax.random.bits(key, (-(-size // 2),), jnp.uint32)
  halves = jax.lax.bitcast_convert_type(words, jnp.uint16)
  draws = halves.reshape(-1)[:size].reshape(shape)
  return draws >= jnp.uint16(_num_dropped(rate))


def keep_scale(rate: float) -> float:
  """Returns what a kept element is multiplied by."""
  return _LEVELS / (_LEVELS - _num_dropped(rate))


def drop(x: jax.Array, key: jax.Array | None, *, rate: float) -> jax.Array:
  """Returns `x` with elements dropped; `x` itself if `key` is None."""
  if key is None:
    return x
  mask = keep_mask(key, x.shape, rate=rate)
  return jnp.where(mask, x * jnp.asarray(keep_scale(rate), x.dtype), 0)


def check_rate(rate: float, *, name: str) -> None:
  """Raises `ValueError` unless `rate` is a probability below one."""
  if not 0.0 <= rate < 1.0:
    raise ValueError(f"{name} must be at least 0 and below 1, got {rate}.")


def _num_dropped(rate: float) -> int:
  return min(round(rate * _LEVELS), _LEVELS - 1)
