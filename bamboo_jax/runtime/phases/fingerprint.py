"""Fingerprints of layers, 64 bits each, computed where their state lies.

Copies of a layer must be equal to the bit. To compare them, nodes exchange a
number instead of the state. Each word of an array is mixed with its position,
by a function that is one-to-one in the word, and the results are summed twice,
as they are and mixed again. So the order in which a device adds does not
matter, a single wrong word is always found, and other differences are missed
with probability 2**-64. It reads the state once and writes nothing.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from bamboo_jax import base
from bamboo_jax.runtime import places

Started = Sequence[jax.Array]

# Odd, so that the order of arrays matters.
_ARRAY_FACTOR = 0x9E3779B97F4A7C15  # 2**64 / golden ratio.


def start(tree: base.PyTree) -> Started:
  """Starts to compute the fingerprint of a tree; `read` returns it."""
  return [add_up(array) for array in places.move(jax.tree.leaves(tree), "device")]


def read(started: Started) -> int:
  """Returns a fingerprint; blocks until it is computed."""
  total = 0
  for sums in jax.device_get(list(started)):
    high, low = sums.tolist()
    total = (total * _ARRAY_FACTOR + (high << 32 | low)) % 2**64
  return total


@jax.jit
def add_up(array: jax.Array) -> jax.Array:
  """Returns the two words of an array's fingerprint, uint32 [2]."""
  words = _to_words(array)
  at = jnp.arange(words.size, dtype=jnp.uint32)
  # This factor and the next are primes of xxHash32.
  once = _mix(words + at * np.uint32(0x9E3779B1))
  twice = (once ^ (once >> 15)) * np.uint32(0x27D4EB2F)
  # One reduction, so that XLA fuses everything into one loop.
  add = lambda a, b: (a[0] + b[0], a[1] + b[1])
  zero = np.uint32(0)
  return jnp.stack(jax.lax.reduce((once, twice), (zero, zero), add, (0,)))


def _to_words(array: jax.Array) -> jax.Array:
  """Returns the bits of an array of any dtype as words, flat uint32."""
  if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
    array = jax.random.key_data(array)
  if jnp.issubdtype(array.dtype, jnp.complexfloating):
    array = jnp.stack([array.real, array.imag])
  if array.dtype == jnp.bool_:
    array = array.astype(jnp.uint8)
  is_int = jnp.issubdtype(array.dtype, jnp.integer)
  info = jnp.iinfo(array.dtype) if is_int else jnp.finfo(array.dtype)
  kind = f"uint{min(32, info.bits)}"  # 64 bits make two words.
  words = jax.lax.bitcast_convert_type(array, kind)
  return words.ravel().astype(jnp.uint32)


def _mix(x: jax.Array) -> jax.Array:
  """Returns a one-to-one function of words: the finaliser of MurmurHash3."""
  x = (x ^ (x >> 16)) * np.uint32(0x85EBCA6B)
  x = (x ^ (x >> 13)) * np.uint32(0xC2B2AE35)
  return x ^ (x >> 16)
