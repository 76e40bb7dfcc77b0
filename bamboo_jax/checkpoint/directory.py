"""The directory of one checkpoint.

STEP/node0/         arrays of the layers that member 0 wrote, an item of Orbax
STEP/node3/         arrays of another member's layers, if there is one
STEP/manifest.json  list of layers and files, sizes and hashes; written last
"""

from collections.abc import Mapping, Sequence
import pathlib
from typing import Any, NamedTuple

import numpy as np

from bamboo_jax import base
from bamboo_jax.checkpoint import (
    arrays as layer_arrays,
    frozen as frozen_lib,
    manifest as manifest_lib,
    orbax_item,
)
from bamboo_jax.metrics import summary as summary_lib
from bamboo_jax.runtime.stage import spec as spec_lib


def write_part(
    path: pathlib.Path,
    item: str,
    layers: Mapping[str, Mapping[str, np.ndarray]],
    *,
    step: base.StepId,
) -> manifest_lib.Manifest:
  """Writes layers as the new directory `item` of a checkpoint; blocks.

  `layers` are arrays by layer and name. Returns the manifest of this part of
  the checkpoint at `path`, once all is on disk. Raises `OSError` or
  `ValueError` if it cannot be written.
  """
  orbax_item.write_item(path / item, layers)
  entries = {
      name: manifest_lib.LayerEntry(
          item=item, sha256=_sha256(arrays), arrays=layer_arrays.specs_of(arrays)
      )
      for name, arrays in layers.items()
  }
  files = manifest_lib.sync_files(path, item)
  return manifest_lib.Manifest(step, {}, entries, files)


class CheckpointContents(NamedTuple):
  """States of layers by name, and the run's description of itself."""

  layers: dict[str, spec_lib.LayerState]
  meta: dict[str, Any]


def read(
    path: pathlib.Path,
    like: Mapping[str, spec_lib.LayerState],
    names: Sequence[str],
    weights: frozen_lib.InitialWeights | None = None,
) -> CheckpointContents:
  """Reads some layers of the checkpoint at `path`, those in `names`.

  `like` has all layers of the model, with arrays or shapes as leaves. The
  result has the same structure, with numpy arrays of the same dtypes. Frozen
  arrays that are not in the checkpoint are those of `weights`.

  Raises `base.DamagedCheckpointError` if it is incomplete or damaged, and
  `base.CheckpointError` if it is temporarily unreadable, of another model or
  optimizer, or of other `weights`; names the first layer that differs.
  """
  manifest = manifest_lib.read_manifest(path)
  _check_layers(path, manifest, like)
  arrays = read_arrays(path, manifest, names, weights)
  states = {name: layer_arrays.restore_layer(arrays[name], like[name]) for name in names}
  return CheckpointContents(states, dict(manifest.meta))


def _check_layers(
    path: pathlib.Path, manifest: manifest_lib.Manifest, like: Mapping[str, spec_lib.LayerState]
) -> None:
  """Raises `base.CheckpointError` unless the checkpoint is of these layers."""
  other = f"Checkpoint {path} is of another model or optimizer"
  for layer, state in like.items():
    if layer not in manifest.layers:
      raise base.CheckpointError(
          f"{other}: it has no layer {layer!r}, which the model has. It has "
          f"{', '.join(manifest.layers)}."
      )
    found = manifest.layers[layer].specs
    wanted = layer_arrays.specs_of(layer_arrays.shapes_of(state))
    for name in [*wanted, *found]:
      if found.get(name) != wanted.get(name):
        raise base.CheckpointError(
            f"{other}: in layer {layer!r}, {name} is "
            f"{found.get(name, 'absent')} there and "
            f"{wanted.get(name, 'absent')} in the model."
        )
  for layer in manifest.layers:
    if layer not in like:
      raise base.CheckpointError(f"{other}: it has a layer {layer!r}, which the model lacks.")


def read_arrays(
    path: pathlib.Path,
    manifest: manifest_lib.Manifest,
    names: Sequence[str],
    weights: frozen_lib.InitialWeights | None,
) -> dict[str, dict[str, np.ndarray]]:
  """Returns the arrays of the layers `names`, by layer and name.

  Raises `base.DamagedCheckpointError`, or `base.CheckpointError` if they are
  temporarily unreadable, or `weights` are not those of the run.
  """
  entries = {name: manifest.layers[name] for name in names}
  arrays: dict[str, dict[str, np.ndarray]] = {}
  for item in sorted({entry.item for entry in entries.values()}):
    shapes = {
        name: layer_arrays.parse_specs(entry.arrays)
        for name, entry in entries.items()
        if entry.item == item
    }
    try:
      arrays |= orbax_item.read_item(path / item, shapes)
    except Exception as error:  # Orbax raises various types.
      text = f"Cannot read checkpoint {path}: {orbax_item.describe_error(error)}."
      if not orbax_item.is_of_system(error):
        raise base.DamagedCheckpointError(text) from error
      raise base.CheckpointError(
          f"{text} Without that directory, an older checkpoint is used."
      ) from error
  for name, entry in entries.items():
    same = layer_arrays.specs_of(arrays[name]) == entry.arrays
    if not same or _sha256(arrays[name]) != entry.sha256:
      raise base.DamagedCheckpointError(
          f"Checkpoint {path} is damaged: layer {name!r} is not as saved."
      )
    if entry.frozen is not None:
      arrays[name] |= frozen_lib.read(path, name, entry.frozen, weights)
  return arrays


def _sha256(arrays: Mapping[str, np.ndarray]) -> str:
  return summary_lib.digest_arrays(sorted(arrays.items()))
