"""Reads layers of one checkpoint, and finds damage."""

from collections.abc import Callable, Mapping, Sequence
import pathlib
from typing import Any, NamedTuple

import numpy as np

from bamboo_jax import base
from bamboo_jax.checkpoint import arrays as layer_arrays, manifest as manifest_lib, orbax_item
from bamboo_jax.metrics import summary as summary_lib
from bamboo_jax.models import layer as layer_lib
from bamboo_jax.runtime.stage import spec as spec_lib


class InitialWeights(NamedTuple):
  """The weights from which a run began.

  Attributes:
    path: Their folder, for messages.
    read: Returns the variables of a layer; raises `base.CheckpointError`.
  """

  path: str
  read: Callable[[str], layer_lib.Variables]


class CheckpointContents(NamedTuple):
  """States of layers by name, and the run's description of itself."""

  layers: dict[str, spec_lib.LayerState]
  meta: dict[str, Any]


def read(
    file: pathlib.Path,
    like: Mapping[str, spec_lib.LayerState],
    names: Sequence[str],
    weights: InitialWeights | None = None,
) -> CheckpointContents:
  """Reads some layers of the checkpoint with the manifest `file`, those in `names`.

  `like` has all layers of the model, with arrays or shapes as leaves. The
  result has the same structure, with numpy arrays of the same dtypes.

  Raises `base.DamagedCheckpointError` if it is incomplete or damaged, and
  `base.CheckpointError` if it is temporarily unreadable, of another model or
  optimizer, or needs other `weights`; names the first layer that differs.
  """
  manifest = manifest_lib.read_manifest(file)
  _check_layers(file, manifest, like)
  arrays = read_arrays(file, manifest, names, weights)
  states = {name: layer_arrays.restore_layer(arrays[name], like[name]) for name in names}
  return CheckpointContents(states, dict(manifest.meta))


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
    file: pathlib.Path,
    manifest: manifest_lib.Manifest,
    names: Sequence[str],
    weights: InitialWeights | None,
) -> dict[str, dict[str, np.ndarray]]:
  """Returns the arrays of the layers `names`, by layer and name.

  Raises `base.DamagedCheckpointError`, or `base.CheckpointError` if they are
  temporarily unreadable, or `weights` are not those of the run.
  """
  frozen = {name: manifest.frozen[name] for name in names if name in manifest.frozen}
  arrays = _read_items(file, {name: manifest.layers[name] for name in names})
  found = _read_items(file, {name: entry for name, entry in frozen.items() if entry.item})
  for name, entry in frozen.items():
    arrays[name] |= found[name] if entry.item else _take(file, name, entry, weights)
  return arrays


def _read_items(
    file: pathlib.Path, entries: Mapping[str, manifest_lib.LayerEntry]
) -> dict[str, dict[str, np.ndarray]]:
  arrays: dict[str, dict[str, np.ndarray]] = {}
  for item in sorted({entry.item for entry in entries.values()}):
    shapes = {
        name: layer_arrays.parse_specs(entry.arrays)
        for name, entry in entries.items()
        if entry.item == item
    }
    try:
      arrays |= orbax_item.read_item(file.parent / item, shapes)
    except Exception as error:  # Orbax raises various types.
      text = f"Cannot read checkpoint {file}: {orbax_item.describe_error(error)}."
      if not orbax_item.is_of_system(error):
        raise base.DamagedCheckpointError(text) from error
      raise base.CheckpointError(f"{text} Without that file, an older one is used.") from error
  for name, entry in entries.items():
    if layer_arrays.specs_of(arrays[name]) != entry.arrays or sha256(arrays[name]) != entry.sha256:
      raise base.DamagedCheckpointError(
          f"Checkpoint {file} is damaged: layer {name!r} is not as saved."
      )
  return arrays


def _take(
    file: pathlib.Path, layer: str, frozen: manifest_lib.LayerEntry, weights: InitialWeights | None
) -> dict[str, np.ndarray]:
  """Returns the frozen arrays of a layer in format 3, which has their hash only.

  Raises `base.CheckpointError` if `weights` cannot be read, or have others.
  """
  needs = f"Checkpoint {file} needs the weights from which its run began"
  if weights is None:
    raise base.CheckpointError(f"{needs}: set config.init_from.")
  try:
    found = layer_arrays.name_leaves(weights.read(layer))
  except base.CheckpointError as error:  # Maybe damaged: this one is not.
    raise base.CheckpointError(f"{needs}. {error}") from error
  arrays = {name: np.asarray(found[name]) for name in frozen.arrays}
  if layer_arrays.specs_of(arrays) != frozen.arrays or sha256(arrays) != frozen.sha256:
    raise base.CheckpointError(
        f"{needs}, but {weights.path} has changed since: layer {layer!r} has "
        "other frozen weights."
    )
  return arrays


def sha256(arrays: Mapping[str, np.ndarray]) -> str:
  """Returns the hash of arrays, in the order of their names."""
  return summary_lib.digest_arrays(sorted(arrays.items()))
