"""The state of a layer as named arrays, the content of a checkpoint; and hashes of it.

A name is the path of a leaf in the state, such as `slots/0/mu/dense/kernel`. So
a checkpoint does not depend on classes of the optimizer library, and two states
can be compared name by name.

Two runs that agree to the bit have the same hashes, regardless of partition,
number of pipelines and failures. Each layer is hashed in its own process, one
array at a time, and the hash of the model is that of its layers' hashes in
model order. So no process needs the layers of another.
"""

from collections.abc import Collection, Mapping, Sequence
import hashlib
import types
from typing import Any

import jax
import numpy as np

from bamboo_jax import base
from bamboo_jax.models import layer as layer_lib
from bamboo_jax.runtime.stage import spec as spec_lib

name_leaves, restore_layer = layer_lib.name_leaves, layer_lib.restore_leaves
Digests = dict[str, tuple[str, str]]  # By layer: of the parameters as float32, of the whole state.


def copy_to_host(
    layers: Mapping[str, spec_lib.LayerState],
    but: Mapping[str, Collection[str]] = types.MappingProxyType({}),
) -> dict[str, dict[str, np.ndarray]]:
  """Returns copies of the arrays, keyed by layer and name, all but some.

  Blocks until the arrays are computed and copied; they may be donated
  afterwards.
  """
  named = {
      layer: {
          name: leaf for name, leaf in name_leaves(state).items() if name not in but.get(layer, ())
      }
      for layer, state in layers.items()
  }
  for leaf in jax.tree.leaves(named):
    if isinstance(leaf, jax.Array):
      leaf.copy_to_host_async()
  copies: dict[str, dict[str, np.ndarray]] = jax.tree.map(np.array, named)
  return copies


def find_nonfinite(layers: Mapping[str, Mapping[str, np.ndarray]]) -> str | None:
  """Returns the first array with NaN or infinity, as "layer: name".

  Infinite optimizer slots are allowed: they make an update 0. None if all
  values are finite.
  """
  for layer, arrays in layers.items():
    for name, array in arrays.items():
      is_slot = name.startswith("slots/")
      is_bad = np.isnan(array) if is_slot else ~np.isfinite(array)
      if is_bad.any():
        return f"{layer}: {name}"
  return None


def shapes_of(state: base.PyTree) -> dict[str, jax.ShapeDtypeStruct]:
  """Returns dtype and shape of each array or number of a layer, by name."""
  leaves = {
      name: leaf if hasattr(leaf, "dtype") else np.asarray(leaf)
      for name, leaf in name_leaves(state).items()
  }
  return {name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for name, leaf in leaves.items()}


def specs_of(arrays: Mapping[str, Any]) -> dict[str, str]:
  """Returns dtype and shape of arrays or shapes as text, "float32[2,3]"."""
  return {
      name: f"{np.dtype(a.dtype).name}[{','.join(map(str, a.shape))}]" for name, a in arrays.items()
  }


def parse_specs(specs: Mapping[str, str]) -> dict[str, jax.ShapeDtypeStruct]:
  """Returns the shapes from which `specs_of` made `specs`."""
  parsed = {}
  for name, text in specs.items():
    dtype, _, sizes = text.rstrip("]").partition("[")
    shape = tuple(int(size) for size in sizes.split(",") if size)
    parsed[name] = jax.ShapeDtypeStruct(shape, np.dtype(dtype))
  return parsed


def sha256(arrays: Mapping[str, Any], dtype: Any = None) -> str:
  """Returns the hash of arrays of a layer in the order of their names, each as `dtype`.

  It is that of their bytes in C order; so equal numbers have equal hashes in any layout.
  """
  found = hashlib.sha256()
  for _, array in sorted(arrays.items()):
    found.update(np.ascontiguousarray(array, dtype).reshape(-1).view(np.uint8).data)
  return found.hexdigest()


def digest(layers: Mapping[str, spec_lib.LayerState]) -> Digests:
  """Returns the hashes of layers; copies one array at a time to the host."""
  return {
      name: (sha256(name_leaves(layer.params), np.float32), sha256(name_leaves(layer)))
      for name, layer in layers.items()
  }


def params_sha256(digests: Digests, order: Sequence[str]) -> str:
  """Returns the hash of all parameters; `order` lists the model's layers."""
  return _join([digests[name][0] for name in order])


def state_sha256(digests: Digests, order: Sequence[str], *, samples_seen: int) -> str:
  """Returns the hash of parameters, slots, statistics and data position."""
  return _join([*(digests[name][1] for name in order), f"{samples_seen}"])


def _join(words: Sequence[str]) -> str:
  return hashlib.sha256("\n".join(words).encode()).hexdigest()
