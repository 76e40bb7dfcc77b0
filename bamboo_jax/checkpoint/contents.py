"""Reads layers of one checkpoint, and finds damage."""

from collections.abc import Mapping, Sequence
import pathlib
from typing import Any

import numpy as np

from bamboo_jax import base
from bamboo_jax.checkpoint import (
    arrays as layer_arrays,
    digest,
    manifest as manifest_lib,
    orbax_item,
)
from bamboo_jax.runtime.stage import spec as spec_lib

# States of layers by name, and the run's description of itself.
CheckpointContents = tuple[dict[str, spec_lib.LayerState], Mapping[str, Any]]


def read(
    file: pathlib.Path,
    manifest: manifest_lib.Manifest,
    like: Mapping[str, spec_lib.LayerState],
    names: Sequence[str],
) -> CheckpointContents:
  """Reads some layers of the checkpoint with the manifest in `file`, those in `names`.

  `like` has all layers of the model, with arrays or shapes as leaves. The
  result has the same structure, with numpy arrays of the same dtypes.

  Raises `base.DamagedCheckpointError` if it is incomplete or damaged, and
  `base.CheckpointError` if it is temporarily unreadable, or of another model or
  optimizer; names the first layer that differs.
  """
  _check_layers(file, manifest, like)
  arrays = read_arrays(file, manifest, names)
  states = {name: layer_arrays.restore_layer(arrays[name], like[name]) for name in names}
  return states, manifest.meta


def _check_layers(
    file: pathlib.Path, manifest: manifest_lib.Manifest, like: Mapping[str, spec_lib.LayerState]
) -> None:
  """Raises `base.CheckpointError` unless the checkpoint is of these layers."""
  other = f"Checkpoint {file} is of another model or optimizer"
  for layer, state in like.items():
    if layer not in manifest.layers:
      raise base.CheckpointError(
          f"{other}: it has no layer {layer!r}, which the model has. It has "
          f"{', '.join(manifest.layers)}."
      )
    found = manifest.specs(layer)
    wanted = layer_arrays.specs_of(layer_arrays.shapes_of(state))
    for name in [*wanted, *found]:
      there, here = (specs.get(name, "absent") for specs in (found, wanted))
      if there != here:
        raise base.CheckpointError(
            f"{other}: in layer {layer!r}, {name} is {there} there and {here} in the model."
        )
  for layer in manifest.layers:
    if layer not in like:
      raise base.CheckpointError(f"{other}: it has a layer {layer!r}, which the model lacks.")


def read_arrays(
    file: pathlib.Path, manifest: manifest_lib.Manifest, names: Sequence[str]
) -> dict[str, dict[str, np.ndarray]]:
  """Returns the arrays of the layers `names`, by layer and name.

  Raises `base.DamagedCheckpointError`, or `base.CheckpointError` if they are
  temporarily unreadable.
  """
  arrays: dict[str, dict[str, np.ndarray]] = {name: {} for name in names}
  for item, own in manifest.find_items(names).items():
    shapes = {name: layer_arrays.parse_specs(entry.arrays) for name, entry in own.items()}
    try:
      found = orbax_item.read_item(file.parent / item, shapes)
    except Exception as error:  # Orbax raises various types.
      text = f"Cannot read checkpoint {file}: {orbax_item.describe_error(error)}."
      if not orbax_item.is_of_system(error):
        raise base.DamagedCheckpointError(text) from error
      raise base.CheckpointError(f"{text} Without that file, an older one is used.") from error
    for name, entry in own.items():
      same = layer_arrays.specs_of(found[name]) == entry.arrays
      if not same or digest.sha256(found[name]) != entry.sha256:
        raise base.DamagedCheckpointError(
            f"Checkpoint {file} is damaged: layer {name!r} is not as saved."
        )
      arrays[name] |= found[name]
  return arrays
