"""Arrays of layers in directories: writes one, reads layers of a checkpoint, finds damage.

One directory, an item of Orbax, holds all layers of a writer, and any of them can be read
alone. An item for each layer would be twice as slow: measured for 20 layers with 380
arrays in 32 MB, 455 against 215 ms of CPU time per save.

Orbax is imported by the first save or restore: it takes a fifth of all imports
of a worker, before its first step.
"""

from collections.abc import Mapping, Sequence
import errno
import functools
import logging
import os
import pathlib
import re
import sys
from typing import Any

from absl import logging as absl_logging
import jax
import numpy as np

from bamboo_jax import base
from bamboo_jax.checkpoint import arrays as layer_arrays, manifest as manifest_lib
from bamboo_jax.runtime.stage import spec as spec_lib

# States of layers by name, and the run's description of itself.
CheckpointContents = tuple[dict[str, spec_lib.LayerState], Mapping[str, Any]]
Arrays = Mapping[str, Mapping[str, np.ndarray]]

# Errors unrelated to the content of a file: share, limits, permissions.
_OF_SYSTEM = frozenset(
    getattr(errno, name)
    for name in (
        *("EACCES", "EAGAIN", "EBUSY", "ECONNREFUSED", "ECONNRESET"),
        *("EHOSTDOWN", "EHOSTUNREACH", "EINTR", "EIO", "EMFILE", "ENFILE"),
        *("ENODEV", "ENOMEM", "ENOTCONN", "ENXIO", "EPERM", "EREMOTEIO"),
        *("ESHUTDOWN", "ESTALE", "ETIMEDOUT"),
    )
)


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
      found = read_item(file.parent / item, shapes)
    except Exception as error:  # Orbax raises various types.
      text = f"Cannot read checkpoint {file}: {describe_error(error)}."
      code = _os_error_code(error) or getattr(error, "errno", None)
      if code not in _OF_SYSTEM and not isinstance(error, MemoryError):
        raise base.DamagedCheckpointError(text) from error
      raise base.CheckpointError(f"{text} Without that file, an older one is used.") from error
    for name, entry in own.items():
      same = layer_arrays.specs_of(found[name]) == entry.arrays
      if not same or layer_arrays.sha256(found[name]) != entry.sha256:
        raise base.DamagedCheckpointError(
            f"Checkpoint {file} is damaged: layer {name!r} is not as saved."
        )
      arrays[name] |= found[name]
  return arrays


def write_item(path: pathlib.Path, layers: Arrays) -> None:
  """Writes arrays of layers to a directory, which must not exist; blocks.

  Arrays without elements are omitted, as Orbax cannot store them. Raises
  `OSError` or `ValueError` if it cannot be written.
  """
  if stored := _drop_empty(layers):
    import orbax.checkpoint as ocp

    with _make_checkpointer() as checkpointer:
      # Orbax takes no other path.
      checkpointer.save(path.absolute(), args=ocp.args.PyTreeSave(stored))


def read_item(
    path: pathlib.Path, like: Mapping[str, Mapping[str, jax.ShapeDtypeStruct]]
) -> dict[str, dict[str, np.ndarray]]:
  """Returns the arrays that `like` names, by layer; reads no others.

  Orbax does not document its exceptions for a damaged item.
  """
  import orbax.checkpoint as ocp

  stored: Any = {}
  if kept := _drop_empty(like):
    args = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), kept)
    with _make_checkpointer() as checkpointer:
      stored = checkpointer.restore(
          path.absolute(),
          args=ocp.args.PyTreeRestore(item=args, restore_args=args, partial_restore=True),
      )
  return {
      layer: {
          # Without an array there, Orbax returns an object of another type.
          name: np.asarray(stored[layer][name]) if s.size else np.zeros(s.shape, s.dtype)
          for name, s in shapes.items()
      }
      for layer, shapes in like.items()
  }


def _drop_empty(layers: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
  """Returns the arrays, or shapes, that have elements."""
  stored = {layer: {k: a for k, a in arrays.items() if a.size} for layer, arrays in layers.items()}
  return {layer: arrays for layer, arrays in stored.items() if arrays}


def describe_error(error: Exception) -> str:
  """Returns an error as one line without a full stop."""
  if code := _os_error_code(error):
    return os.strerror(code)
  if isinstance(error, OSError) and error.strerror:
    return error.strerror
  text = re.sub(r"\s+", " ", f"{type(error).__name__}: {error}").strip()
  return text if len(text) <= 200 else f"{text[:200]}..."


def _os_error_code(error: Exception) -> int | None:
  """Returns the errno in a message of TensorStore."""
  found = re.search(r"os_error_code='(\d+)'", str(error))
  return int(found[1]) if found else None


def _make_checkpointer() -> Any:
  import orbax.checkpoint as ocp

  _hide_noise()
  _be_alone()
  alone = ocp.options.MultiprocessingOptions(primary_host=0, active_processes={0})
  # The arrays are ours alone, so Orbax need not copy them.
  handlers = ocp.type_handlers.create_type_handler_registry(
      (np.ndarray, ocp.type_handlers.NumpyHandler(deepcopy_host_arrays=False))
  )
  return ocp.Checkpointer(
      ocp.PyTreeCheckpointHandler(
          multiprocessing_options=alone, type_handler_registry=handlers, use_compression=False
      ),
      multiprocessing_options=alone,
  )


@functools.cache
def _be_alone() -> None:
  """Makes Orbax treat this process as the only one, number 0.

  With itself as the only active process it waits for no other. But in any case
  it silently writes numpy arrays in process 0 only, and it rejects JAX arrays
  that only one process has (0.12.8).
  """
  from orbax.checkpoint._src.multihost import multihost

  assert multihost.process_index() == jax.process_index()
  multihost.process_index = lambda: 0
  multihost.process_count = lambda: 1


@functools.cache
def _hide_noise() -> None:
  """Hides repeated reports of errors that Orbax also raises.

  It logs each with its traceback, and unfinished reads and writes report that
  their event loop is closed or their exception was never retrieved.
  `--verbosity=1` shows all of them.
  """
  show = lambda: absl_logging.get_verbosity() >= absl_logging.DEBUG
  orbax = f"{os.sep}orbax{os.sep}"
  absl_logging.get_absl_logger().addFilter(lambda record: show() or orbax not in record.pathname)
  logging.getLogger("asyncio").addFilter(lambda record: show() or orbax not in record.getMessage())
  next_hook = sys.unraisablehook

  def hook(unraisable: Any) -> None:
    if show() or str(unraisable.exc_value) != "Event loop is closed":
      next_hook(unraisable)

  sys.unraisablehook = hook
