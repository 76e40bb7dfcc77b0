"""Hashes of parameters and of the whole state, to compare runs.

Two runs that agree to the bit have the same hashes, regardless of partition,
number of pipelines and failures. Each layer is hashed in its own process, one
array at a time, and the hash of the model is that of its layers' hashes in
model order. So no process needs the layers of another.
"""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import hashlib
from typing import Any

import numpy as np

from bamboo_jax.checkpoint import arrays as layer_arrays
from bamboo_jax.runtime.stage import spec as spec_lib


@dataclasses.dataclass(frozen=True)
class Digests:
  """Hashes of layers in hex, by name of the layer.

  Attributes:
    params: Hash of the parameters as float32, in the order of their names.
    state: Hash of parameters, slots and statistics, as in a checkpoint's
      manifest.
  """

  params: Mapping[str, str]
  state: Mapping[str, str]


def digest_layers(layers: Mapping[str, spec_lib.LayerState]) -> Digests:
  """Returns the hashes of layers; copies one array at a time to the host."""
  return Digests(
      {n: sha256(layer_arrays.name_leaves(l.params), np.float32) for n, l in layers.items()},
      {n: sha256(layer_arrays.name_leaves(l)) for n, l in layers.items()},
  )


def sha256(arrays: Mapping[str, Any], dtype: Any = None) -> str:
  """Returns the hash of arrays of a layer in the order of their names, each as `dtype`.

  It is that of their bytes in C order; so equal numbers have equal hashes in any layout.
  """
  found = hashlib.sha256()
  for _, array in sorted(arrays.items()):
    found.update(np.ascontiguousarray(array, dtype).reshape(-1).view(np.uint8).data)
  return found.hexdigest()


def params_sha256(digests: Digests, order: Sequence[str]) -> str:
  """Returns the hash of all parameters; `order` lists the model's layers."""
  return _join(digests.params[name] for name in order)


def state_sha256(digests: Digests, order: Sequence[str], *, samples_seen: int) -> str:
  """Returns the hash of parameters, slots, statistics and data position."""
  return _join([*(digests.state[name] for name in order), str(samples_seen)])


def _join(words: Iterable[str]) -> str:
  return hashlib.sha256("\n".join(words).encode()).hexdigest()
