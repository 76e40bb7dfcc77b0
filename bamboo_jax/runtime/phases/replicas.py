"""Replicas: copies of a stage's state on another node, equal to the bit.

To compare them, nodes exchange a fingerprint of each layer instead of its state: 64
bits, computed where the state lies. Each word of an array is mixed with its position,
by a function that is one-to-one in the word, and the results are summed twice,
as they are and mixed again. So the order in which a device adds does not
matter, a single wrong word is always found, and other differences are missed
with probability 2**-64. It reads the state once and writes nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from bamboo_jax import base
from bamboo_jax.runtime import engine as engine_lib, places

# Odd, so that the order of arrays matters.
_ARRAY_FACTOR = 0x9E3779B97F4A7C15  # 2**64 / golden ratio.


@dataclasses.dataclass(frozen=True)
class Prints:
  """Fingerprints of a state that has seen `steps` steps, by node and layer."""

  steps: base.StepId
  nodes: Mapping[base.NodeId, Mapping[str, int]]


def take_prints(engine: engine_lib.Engine, steps: base.StepId) -> Prints:
  """Returns the fingerprints of local nodes after `steps` steps; blocks.

  Empty if no layer is on more than one node.
  """
  started = {}
  for number, node in engine.nodes.items() if engine.has_copies else ():
    started[number] = {name: start_print(layer) for name, layer in node.state.items()}
  done = jax.device_get(started).items()  # All are started before one is awaited.
  return Prints(steps, {n: {name: read_print(p) for name, p in own.items()} for n, own in done})


def compare(said: Iterable[Prints]) -> None:
  """Compares all copies of each layer: owners, replicas, in all pipelines.

  Args:
    said: The fingerprints of all members, after the same number of steps.

  Raises:
    base.ReplicaMismatchError: Two nodes differ.
  """
  said = list(said)
  layers: dict[str, dict[int, list[base.NodeId]]] = {}
  for prints in said:
    for number, own in prints.nodes.items():
      for name, value in own.items():
        layers.setdefault(name, {}).setdefault(value, []).append(number)
  for name, nodes in sorted(layers.items()):
    if len(nodes) > 1:
      # The minority first.
      groups = sorted(map(sorted, nodes.values()), key=lambda g: (len(g), g))
      raise base.ReplicaMismatchError(
          f"After step {said[0].steps} the states of layer {name!r} differ between nodes: "
          f"{' | '.join(', '.join(map(str, group)) for group in groups)}."
      )


def start_print(tree: base.PyTree) -> list[jax.Array]:
  """Starts to compute the fingerprint of a tree; `read_print` returns it."""
  return [add_up(array) for array in places.move(jax.tree.leaves(tree), "device")]


def read_print(started: Sequence[jax.Array]) -> int:
  """Returns a fingerprint; blocks until it is computed."""
  total = 0
  for sums in started:
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
