"""Values on the wire: lists of arrays, and how their bytes are described."""

from collections.abc import Callable, Sequence
import functools
import json
import math
from typing import Any

import ml_dtypes
import numpy as np

from bamboo_jax.runtime.wire import frame as frame_lib, pool as pool_lib

# Dtype, shape and size in bytes of an array.
_Kind = tuple[np.dtype, tuple[int, ...], int]


def describe(arrays: Sequence[Any]) -> tuple[str, int]:
  """Returns a description of arrays as text, and their size in bytes."""
  size = sum(a.size * a.dtype.itemsize for a in arrays)
  return _describe(tuple((a.dtype, a.shape) for a in arrays)), size


def buffers_of(frame: frame_lib.Frame) -> list[Any]:
  """Returns a frame as buffers of bytes.

  Blocks until arrays of JAX are computed and on the host. On the CPU backend
  these are the arrays' own memory, which must not be donated.
  """
  arrays = [np.ascontiguousarray(a) for a in frame.payload]
  flat = [a.reshape(-1).view(np.uint8) for a in arrays]
  return [frame_lib.encode(frame), *flat]


def read(
    meta: str, pool: pool_lib.Pool, read_into: Callable[[memoryview], None]
) -> list[np.ndarray]:
  """Returns arrays in memory of a pool, filled by `read_into`.

  Raises `frame.ProtocolError` if `meta` is not a result of `describe`.
  """
  kinds = _parse(meta)
  buffer = pool.take(sum(pool_lib.aligned(size) for _, _, size in kinds))
  arrays, start = [], 0
  for dtype, shape, size in kinds:
    part = buffer[start : start + size]
    if size:
      read_into(part.data)
    arrays.append(part.view(dtype).reshape(shape))
    start += pool_lib.aligned(size)  # Arrays start aligned, see `pool`.
  return arrays


@functools.lru_cache(4096)
def _describe(kinds: tuple[tuple[np.dtype, tuple[int, ...]], ...]) -> str:
  return json.dumps([[dtype.name, list(shape)] for dtype, shape in kinds])


@functools.lru_cache(4096)
def _parse(meta: str) -> tuple[_Kind, ...]:
  try:
    kinds = []
    for name, shape in json.loads(meta):
      dtype = np.dtype(getattr(ml_dtypes, name, name))
      size = math.prod(shape) * dtype.itemsize
      kinds.append((dtype, tuple(shape), size))
  except (ValueError, TypeError, AttributeError) as error:
    raise frame_lib.ProtocolError(f"a value is described as {meta[:80]!r}") from error
  return tuple(kinds)
