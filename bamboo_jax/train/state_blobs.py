"""The state of a stage as bytes, to move it between workers."""

import jax
import numpy as np

from bamboo_jax.runtime.stage import spec as spec_lib


def to_bytes(state: spec_lib.StageState) -> bytes:
  """Returns the bytes of all arrays, in the order of JAX; blocks."""
  leaves = jax.device_get(jax.tree.leaves(state))
  return b"".join(np.ascontiguousarray(leaf).tobytes() for leaf in leaves)


def from_bytes(blob: bytes, like: spec_lib.StageState) -> spec_lib.StageState:
  """Returns the state as numpy arrays.

  Args:
    blob: From `to_bytes`, of a state of the same stage.
    like: Shapes and dtypes of the state.

  Raises:
    ValueError: The sizes differ.
  """
  shapes, structure = jax.tree.flatten(like)
  leaves, start = [], 0
  for shape in shapes:
    size = int(np.prod(shape.shape)) * np.dtype(shape.dtype).itemsize
    part = np.frombuffer(blob[start : start + size], shape.dtype)
    leaves.append(part.reshape(shape.shape))
    start += size
  if start != len(blob):
    raise ValueError(f"The state must have {start} bytes, got {len(blob)}.")
  return structure.unflatten(leaves)
