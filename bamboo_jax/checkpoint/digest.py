"""Hashes of parameters and of the whole state, to compare runs by.

Two runs that agree to the bit have the same hashes, whatever their partition,
number of pipelines, or history of failures.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from bamboo_jax.metrics import summary as summary_lib
from bamboo_jax.runtime.stage import spec as spec_lib


def params_sha256(
    layers: Mapping[str, spec_lib.LayerState], order: Sequence[str]
) -> str:
  """Returns the hash of all parameters as float32 bytes.

  Layers are in model order, `order`; within a layer, parameters by name.
  """
  return summary_lib.digest_arrays(
      (path, array.astype(np.float32))
      for name in order
      for path, array in _arrays(name, layers[name].params)
  )


def state_sha256(
    layers: Mapping[str, spec_lib.LayerState],
    order: Sequence[str],
    *,
    samples_seen: int,
) -> str:
  """Returns the hash of parameters, slots, statistics and data position."""

  def arrays() -> Iterator[tuple[str, np.ndarray]]:
    for name in order:
      layer = layers[name]
      for part in ("params", "slots", "stats"):
        yield from _arrays(f"{name}/{part}", getattr(layer, part))
    yield "samples_seen", np.array(samples_seen, np.int64)

  return summary_lib.digest_arrays(arrays())


def _arrays(prefix: str, tree: Any) -> list[tuple[str, np.ndarray]]:
  leaves = jax.tree_util.tree_leaves_with_path(tree)
  named = {
      f"{prefix}{jax.tree_util.keystr(path)}": np.asarray(leaf)
      for path, leaf in leaves
  }
  return sorted(named.items(), key=lambda entry: entry[0])
