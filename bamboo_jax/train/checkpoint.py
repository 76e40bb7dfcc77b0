"""Checkpoints keyed by layer, so that any partition can load them.

  checkpoints/STEP/layers/        arrays of all layers, an item of Orbax
  checkpoints/STEP/manifest.json  what is there, with sizes and hashes

A save copies the state to host memory and returns; a thread writes it to
`STEP.tmp`, the manifest last, and renames that to `STEP`. So whenever the
process is killed, what is found under `STEP` is complete, or not accepted.
"""

from collections.abc import Mapping
from concurrent import futures
import os
import pathlib
import re
import shutil
from typing import Any

from absl import logging
import numpy as np

from bamboo_jax import base
from bamboo_jax.metrics import summary as summary_lib
from bamboo_jax.runtime import spec as spec_lib
from bamboo_jax.train import layer_arrays
from bamboo_jax.train import manifest as manifest_lib
from bamboo_jax.train import orbax_item

Layers = Mapping[str, spec_lib.LayerState]

_ITEM = "layers"
_UNFINISHED = ".tmp"  # Suffix of directories that are being made or removed.


class Checkpointer:
  """Saves and restores the state of a run, in one process and one thread.

  Creating it removes what an interrupted save has left. Call `close` at the
  end: a save that is in flight when the interpreter exits may be lost.

  Args:
    directory: Where the checkpoints are; made if needed. Nobody else may write
      there.
    keep: Number of checkpoints to keep, at least 1; older ones are removed once
      a newer one is complete.

  Raises:
    base.CheckpointError: `directory` cannot be used.
  """

  def __init__(self, directory: str | os.PathLike[str], *, keep: int) -> None:
    if keep < 1:
      raise ValueError(f"keep must be at least 1, got {keep}.")
    self._directory = pathlib.Path(directory).absolute()
    self._keep = keep
    try:
      self._directory.mkdir(parents=True, exist_ok=True)
      for path in self._directory.glob(f"*{_UNFINISHED}"):
        shutil.rmtree(path)
    except OSError as error:
      raise base.CheckpointError(
          f"Cannot keep checkpoints in {self._directory}: {_reason(error)}."
      ) from error
    self._executor = futures.ThreadPoolExecutor(1, "checkpoint")
    self._saving: futures.Future[None] | None = None

  def steps(self) -> tuple[int, ...]:
    """Returns the steps with a complete checkpoint, oldest first.

    Sizes of files are compared, contents are not read.
    """
    return tuple(s for s in self._all_steps() if self._problem(s) is None)

  def latest_step(self) -> int | None:
    """Returns the newest step with a complete checkpoint, or None.

    Warns of each newer one that is not complete.
    """
    for step in reversed(self._all_steps()):
      problem = self._problem(step)
      if problem is None:
        return step
      logging.warning("%s", problem)
    return None

  def save(self, step: int, layers: Layers, meta: Mapping[str, Any]) -> None:
    """Starts to save; returns once the arrays are copied to host memory.

    Waits for the previous save first. What is wrong with this one is raised by
    the next call of `save`, `wait` or `close`; older checkpoints stay usable.

    Args:
      step: Number of steps that the state has seen; above `latest_step`.
      layers: State of each layer, in model order; jax or numpy arrays on any
        local devices. They may be donated or changed afterwards.
      meta: What the run says of itself; plain JSON values.

    Raises:
      base.CheckpointError: The previous save failed. This one is not started,
        and may be tried again.
    """
    self.wait()
    latest = max(self.steps(), default=-1)
    if step <= latest:
      raise ValueError(
          f"step must be above {latest}, which is saved in {self._directory}, "
          f"got {step}."
      )
    manifest_lib.check_meta(meta)
    arrays = layer_arrays.copy_to_host(layers)
    self._saving = self._executor.submit(self._write, step, arrays, dict(meta))

  def restore(
      self, step: int, like: Layers, *, subset: bool = False
  ) -> tuple[dict[str, spec_lib.LayerState], dict[str, Any]]:
    """Returns the layers of `like`, and what the run said of itself.

    Args:
      step: One of `steps`.
      like: The layers to restore, with arrays or shapes as leaves. The result
        has the same structure, with numpy arrays of the same dtypes.
      subset: Whether the checkpoint may have other layers too.

    Raises:
      base.CheckpointError: The checkpoint is not complete, or damaged, or of
        another model or optimizer; names the first layer and array that differ.
    """
    path = self._directory / str(step)
    manifest = manifest_lib.read_manifest(path)
    _check_layers(path, manifest, like, subset=subset)
    return _read_layers(path, manifest, like), dict(manifest.meta)

  def wait(self) -> None:
    """Blocks until no save is in flight.

    Raises:
      base.CheckpointError: The save failed; raised once.
    """
    if self._saving is not None:
      futures.wait([self._saving])  # An interrupt here forgets nothing.
      saving, self._saving = self._saving, None
      saving.result()

  def close(self) -> None:
    """Waits as `wait` does, and ends the thread."""
    try:
      self.wait()
    finally:
      self._executor.shutdown()

  def _all_steps(self) -> list[int]:
    """Returns the steps that have a directory, complete or not, sorted."""
    names = (path.name for path in self._directory.iterdir())
    return sorted(int(n) for n in names if re.fullmatch(r"0|[1-9][0-9]*", n))

  def _problem(self, step: int) -> base.CheckpointError | None:
    """Returns why the checkpoint of `step` is not complete, or None."""
    try:
      manifest_lib.read_manifest(self._directory / str(step))
    except base.CheckpointError as error:
      return error
    return None

  def _write(
      self,
      step: int,
      layers: Mapping[str, Mapping[str, np.ndarray]],
      meta: Mapping[str, Any],
  ) -> None:
    """Writes a checkpoint and removes old ones; runs in the thread."""
    path = self._directory / str(step)
    unfinished = path.with_name(path.name + _UNFINISHED)
    entries = {
        name: manifest_lib.LayerEntry(
            item=_ITEM,
            sha256=_sha256(arrays),
            arrays=layer_arrays.specs_of(arrays),
        )
        for name, arrays in layers.items()
    }
    try:
      unfinished.mkdir()
      orbax_item.write_item(unfinished / _ITEM, layers)
      manifest_lib.write_manifest(
          unfinished, step=step, meta=meta, layers=entries
      )
      if path.exists():  # It is not complete, see `save`.
        shutil.rmtree(path)
      os.rename(unfinished, path)
      manifest_lib.sync(self._directory)
    except (OSError, ValueError) as error:
      # Makes room; what cannot be removed now is removed at the next start.
      shutil.rmtree(unfinished, ignore_errors=True)
      raise base.CheckpointError(
          f"Cannot save step {step} to {path}: {_reason(error)}."
      ) from error
    self._remove_old()

  def _remove_old(self) -> None:
    """Removes all that is older than the newest `keep` complete ones."""
    oldest = self.steps()[-self._keep :][0]
    for step in self._all_steps():
      if step < oldest:
        path = self._directory / str(step)
        try:
          unfinished = path.rename(path.with_name(path.name + _UNFINISHED))
          shutil.rmtree(unfinished)
        except OSError as error:
          logging.warning("Cannot remove %s: %s.", path, _reason(error))


def _check_layers(
    path: pathlib.Path,
    manifest: manifest_lib.Manifest,
    like: Layers,
    *,
    subset: bool,
) -> None:
  """Raises `base.CheckpointError` unless the checkpoint has what is wanted."""
  other = f"Checkpoint {path} is of another model or optimizer"
  for layer, state in like.items():
    if layer not in manifest.layers:
      raise base.CheckpointError(
          f"{other}: it has no layer {layer!r}, which the model has. It has "
          f"{', '.join(manifest.layers)}."
      )
    found = manifest.layers[layer].arrays
    wanted = layer_arrays.specs_of(layer_arrays.shapes_of(state))
    for name in [*wanted, *found]:
      if found.get(name) != wanted.get(name):
        raise base.CheckpointError(
            f"{other}: in layer {layer!r}, {name} is "
            f"{found.get(name, 'absent')} there and "
            f"{wanted.get(name, 'absent')} in the model."
        )
  if not subset:
    for layer in manifest.layers:
      if layer not in like:
        raise base.CheckpointError(
            f"{other}: it has a layer {layer!r}, which the model lacks."
        )


def _read_layers(
    path: pathlib.Path, manifest: manifest_lib.Manifest, like: Layers
) -> dict[str, spec_lib.LayerState]:
  """Returns the layers of `like` as they were saved.

  Raises:
    base.CheckpointError: They cannot be read, or have changed.
  """
  arrays = {}
  for item in sorted({manifest.layers[name].item for name in like}):
    shapes = {
        name: layer_arrays.shapes_of(state)
        for name, state in like.items()
        if manifest.layers[name].item == item
    }
    try:
      arrays |= orbax_item.read_item(path / item, shapes)
    except Exception as error:  # Whatever Orbax stumbles over.
      raise base.CheckpointError(
          f"Cannot read checkpoint {path}: {_reason(error)}. Without that "
          "directory, an older checkpoint is used."
      ) from error
  for name in like:
    if _sha256(arrays[name]) != manifest.layers[name].sha256:
      raise base.CheckpointError(
          f"Checkpoint {path} is damaged: layer {name!r} is not as it was "
          "saved. Without that directory, an older checkpoint is used."
      )
  return {
      name: layer_arrays.restore_layer(arrays[name], state)
      for name, state in like.items()
  }


def _sha256(arrays: Mapping[str, np.ndarray]) -> str:
  """Returns the hash of the bytes of the arrays, by name."""
  return summary_lib.digest_arrays(sorted(arrays.items()))


def _reason(error: Exception) -> str:
  """Returns in one line what went wrong, without a full stop."""
  code = re.search(r"os_error_code='(\d+)'", str(error))  # Of TensorStore.
  if code:
    return os.strerror(int(code[1]))
  if isinstance(error, OSError) and error.strerror:
    return error.strerror
  text = re.sub(r"\s+", " ", f"{type(error).__name__}: {error}").strip()
  return text if len(text) <= 200 else f"{text[:200]}..."
