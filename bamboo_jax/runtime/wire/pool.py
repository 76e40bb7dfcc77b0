"""Memory for received values that is used again.

Fresh memory costs a page fault for each 4 KiB, more than the copy itself.
"""

import collections
import sys

import numpy as np

_ALIGNMENT = 64  # JAX's CPU backend takes such memory without a copy.
# References to a free buffer: the list, a local variable, the argument of
# `sys.getrefcount`. A view of a buffer, and an array of JAX over it, refer to
# the buffer itself rather than to the view that they were made of.
_FREE = 3


class Pool:
  """Reuses buffers of one thread's values; keeps `most` of each size."""

  def __init__(self, most: int = 8) -> None:
    self._most = most
    self._by_size = collections.defaultdict[int, list[np.ndarray]](list)

  def take(self, size: int) -> np.ndarray:
    """Returns `size` aligned bytes, uint8, that nothing else refers to."""
    buffers = self._by_size[size]
    for index in range(len(buffers)):
      buffer = buffers[index]
      if sys.getrefcount(buffer) == _FREE:
        break
    else:
      buffer = np.empty(size + _ALIGNMENT, np.uint8)
      if len(buffers) < self._most:
        buffers.append(buffer)
    start = -buffer.__array_interface__["data"][0] % _ALIGNMENT
    return buffer[start : start + size]


def aligned(size: int) -> int:
  """Returns `size` rounded up to the alignment of arrays."""
  return -(-size // _ALIGNMENT) * _ALIGNMENT
