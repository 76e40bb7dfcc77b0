"""Random bits as pure functions of integers.

A sample must not depend on when, where or in which order it is drawn, so there
is no stateful generator, but the bits of Philox at a given key. Only raw bits
and stable sorts are used, which numpy promises never to change, unlike the
methods of its generators.
"""

from collections.abc import Sequence
import functools

import numpy as np

MAX_SEED = 2**63 - 1  # The maximum of a key of JAX.


def raw_bits(
    seed: int, index: int, *, count: int, stream: int = 0
) -> np.ndarray:
  """Returns `count` random uint64, independent for different arguments.

  Other arguments are from 0 to `MAX_SEED`; `stream` separates uses of one seed.
  The first bits do not depend on `count`.
  """
  key = np.array([seed, index], np.uint64)
  counter = np.array([0, 0, 0, stream], np.uint64)
  return np.random.Philox(key=key, counter=counter).random_raw(count)


def bits_of_samples(
    seed: int, indices: Sequence[int], *, count: int, stream: int
) -> np.ndarray:
  """Returns the `raw_bits` of each of `indices`, [S, `count`]."""
  bits = [raw_bits(seed, i, count=count, stream=stream) for i in indices]
  return np.array(bits, np.uint64).reshape(-1, count)


def shuffle(seed: int, indices: Sequence[int], *, size: int) -> list[int]:
  """Returns indices below `size`, each once an epoch, in shuffled order."""
  return [
      int(permutation(seed, epoch, size=size)[place])
      for epoch, place in (divmod(index, size) for index in indices)
  ]


@functools.lru_cache(maxsize=4)  # A batch may reach into the next epoch.
def permutation(seed: int, epoch: int, *, size: int) -> np.ndarray:
  """Returns 0 to `size - 1` in random order, int64 [size], read-only."""
  order = np.argsort(raw_bits(seed, epoch, count=size), kind="stable")
  order.flags.writeable = False
  return order
