"""Memory for received values that is used again.

Fresh memory costs a page fault for each 4 KiB, more than the copy itself.
"""

import collections
import sys

import numpy as np

_ALIGNMENT = 64  # JAX's CPU backend takes such memory without a copy.


class Pool:
  """Reuses buffers of one thread's values; keeps `most` of each size."""

  def __init__(self, most: int = 8) -> None:
    self._most = most
    self._by_size = collections.defaultdict[int, list[np.ndarray]](list)
    self._free = [np.empty(0, np.uint8)]  # Only this list refers to it, ever.

  def take(self, size: int) -> np.ndarray:
    """Returns `size` aligned bytes, uint8, that nothing else refers to."""
    buffers, num_free = self._by_size[size], _num_references(self._free, 0)
    for index in range(len(buffers)):
      if _num_references(buffers, index) == num_free:
        buffer = buffers[index]
        break
    else:
      buffer = np.empty(size + _ALIGNMENT, np.uint8)
      if len(buffers) < self._most:
        buffers.append(buffer)
    start = -buffer.__array_interface__["data"][0] % _ALIGNMENT
    return buffer[start : start + size]


def _num_references(buffers: list[np.ndarray], index: int) -> int:
  """Returns the references to a buffer of a list.

  A view of a buffer, and an array of JAX over it, refer to the buffer itself
  rather than to the view that they were made of. How many references this
  function adds depends on the version of CPython, so only compare its results.
  """
  buffer = buffers[index]
  return sys.getrefcount(buffer)


def aligned(size: int) -> int:
  """Returns `size` rounded up to the alignment of arrays."""
  return -(-size // _ALIGNMENT) * _ALIGNMENT
