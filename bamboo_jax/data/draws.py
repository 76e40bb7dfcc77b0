"""Random bits as pure functions of integers.

A sample must be the same whenever, wherever and in whatever order it is asked
for, so there is no generator with a state: the bits are those of Philox at a
given key. Only raw bits and stable sorts are used, which numpy promises never
to change, unlike the methods of its generators.
"""

import functools

import numpy as np

MAX_SEED = 2**64 - 1


def raw_bits(
    seed: int, index: int, *, count: int, stream: int = 0
) -> np.ndarray:
  """Returns `count` random uint64, independent for different arguments.

  Args:
    seed: From 0 to `MAX_SEED`.
    index: From 0 to `MAX_SEED`, such as a number of an epoch or of a sample.
    count: How many; the first ones do not depend on it.
    stream: From 0 to `MAX_SEED`, to tell uses of one seed apart.
  """
  key = np.array([seed, index], np.uint64)
  counter = np.array([0, 0, 0, stream], np.uint64)
  return np.random.Philox(key=key, counter=counter).random_raw(count)


@functools.lru_cache(maxsize=4)  # A batch can reach into the next epoch.
def permutation(seed: int, epoch: int, *, size: int) -> np.ndarray:
  """Returns 0 to `size - 1` in random order, int64 [size], read-only."""
  order = np.argsort(raw_bits(seed, epoch, count=size), kind="stable")
  order.flags.writeable = False
  return order
