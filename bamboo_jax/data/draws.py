"""Random bits as pure functions of integers.

A sample must not depend on when, where or in which order it is drawn, so there
is no stateful generator, but the bits of Philox at a given key. Only raw bits
and stable sorts are used, which numpy promises never to change, unlike the
methods of its generators.
"""

from collections.abc import Sequence
import functools
import math

import numpy as np

MAX_SEED = 2**63 - 1  # The maximum of a key of JAX.
_MAX_TABLE = 1 << 20  # Elements of an order that is kept in memory.
_ROUNDS = 3  # Each changes both halves.
_ORDER = 32  # Stream of random bits.


def raw_bits(seed: int, index: int, *, count: int, stream: int = 0) -> np.ndarray:
  """Returns `count` random uint64, independent for different arguments.

  Other arguments are from 0 to `MAX_SEED`; `stream` separates uses of one seed.
  The first bits do not depend on `count`.
  """
  key = np.array([seed, index], np.uint64)
  counter = np.array([0, 0, 0, stream], np.uint64)
  return np.random.Philox(key=key, counter=counter).random_raw(count)


def bits_of_samples(seed: int, indices: Sequence[int], *, count: int, stream: int) -> np.ndarray:
  """Returns the `raw_bits` of each of `indices`, [S, `count`]."""
  bits = [raw_bits(seed, i, count=count, stream=stream) for i in indices]
  return np.array(bits, np.uint64).reshape(-1, count)


def shuffle(seed: int, indices: Sequence[int], *, size: int) -> list[int]:
  """Returns indices below `size`, each once an epoch, in shuffled order.

  Orders of up to 2**20 elements are tables, 4 bytes for each; longer ones are
  computed where they are needed, see `permute`.
  """
  epochs, places = np.divmod(np.array(indices, np.int64), size)
  order = np.empty_like(places)
  for epoch in np.unique(epochs).tolist():
    chosen = epochs == epoch
    if size <= _MAX_TABLE:
      order[chosen] = permutation(seed, epoch, size=size)[places[chosen]]
    else:
      order[chosen] = permute(seed, epoch, places[chosen], size=size)
  drawn: list[int] = order.tolist()
  return drawn


def permute(seed: int, epoch: int, places: np.ndarray, *, size: int) -> np.ndarray:
  """Returns elements of a random order of 0 to `size - 1`, int64, as `places`.

  A Feistel network: a number is a row and a column of a table that is almost
  square, and rounds add a hash of one to the other in turn. Places of the table
  from `size` are permuted again until they are below it (Black and Rogaway,
  2002). Needs no memory.
  """
  num_columns = np.uint64(math.isqrt(size - 1) + 1)
  num_rows = np.uint64(-(-size // int(num_columns)))
  keys = raw_bits(seed, epoch, count=2 * _ROUNDS, stream=_ORDER)
  keys = _mix(keys ^ np.uint64(size))
  order = np.array(places, np.uint64)
  outside = np.arange(len(order))
  while len(outside):
    row, column = np.divmod(order[outside], num_columns)
    for first, second in keys.reshape(_ROUNDS, 2):
      row = (row + _mix(column ^ first) % num_rows) % num_rows
      column = (column + _mix(row ^ second) % num_columns) % num_columns
    order[outside] = row * num_columns + column
    outside = outside[order[outside] >= size]
  return order.astype(np.int64)


def _mix(bits: np.ndarray) -> np.ndarray:
  """Returns a hash of each uint64: the last step of MurmurHash3."""
  for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
    bits = (bits ^ bits >> np.uint64(33)) * np.uint64(factor)
  mixed: np.ndarray = bits ^ bits >> np.uint64(33)
  return mixed


# A batch may reach into the next epoch, and a mixture has several sources.
@functools.lru_cache(maxsize=16)
def permutation(seed: int, epoch: int, *, size: int) -> np.ndarray:
  """Returns 0 to `size - 1` in random order, uint32 [size], read-only."""
  order = np.argsort(raw_bits(seed, epoch, count=size), kind="stable")
  order = order.astype(np.uint32)
  order.flags.writeable = False
  return order
