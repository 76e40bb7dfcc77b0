"""The manifest of a checkpoint: its contents, with sizes and hashes.

It is the last file that is written into a checkpoint. A checkpoint without a
manifest, or with other sizes of files, is incomplete and is never restored.
Each layer has a hash, and so has the manifest itself.
"""

from collections.abc import Collection, Mapping, Sequence
import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import stat
from typing import Any

from bamboo_jax import base
from bamboo_jax.base import json as json_lib

_NAME = "manifest.json"
_FORMAT = 3
_WHOLE = 2  # The format in which all arrays are stored.
_UNSIGNED = 1  # The format that has no hash of the manifest, either.


@dataclasses.dataclass(frozen=True)
class Frozen:
  """Arrays of a layer that are not stored, as the first weights have them.

  Attributes:
    sha256: Hash of the bytes of the arrays in the order of their names.
    arrays: Dtype and shape of each array by name.
  """

  sha256: str
  arrays: Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class LayerEntry:
  """One layer in a checkpoint.

  Attributes:
    item: Directory in the checkpoint with the arrays of the layer.
    sha256: Hash of the bytes of the arrays in the order of their names.
    arrays: Dtype and shape of each stored array by name.
    frozen: The other arrays; None if all are stored.
  """

  item: str
  sha256: str
  arrays: Mapping[str, str]
  frozen: Frozen | None = None

  @property
  def specs(self) -> dict[str, str]:
    """Dtype and shape of each array of the layer, by name."""
    frozen = self.frozen.arrays if self.frozen is not None else {}
    return {**self.arrays, **frozen}


@dataclasses.dataclass(frozen=True)
class Manifest:
  """The contents of a checkpoint, or of one member's part of it.

  Attributes:
    step: Number of steps that the state has seen.
    meta: Description of the run, plain JSON values; empty in a part.
    layers: The layers by name, in model order.
    files: Size in bytes of each file by its path in the checkpoint.
  """

  step: base.StepId
  meta: Mapping[str, Any]
  layers: Mapping[str, LayerEntry]
  files: Mapping[str, int]


def join(parts: Collection[Manifest], *, order: Sequence[str], meta: Mapping[str, Any]) -> Manifest:
  """Returns the manifest of a checkpoint from the parts of all members.

  `order` is the model's; `meta` is the run's description, plain JSON values.
  """
  (step,) = {part.step for part in parts}
  layers: dict[str, LayerEntry] = {}
  files: dict[str, int] = {}
  for part in parts:
    layers |= part.layers
    files |= part.files
  return Manifest(step, meta, {name: layers[name] for name in order}, files)


def write_manifest(checkpoint: pathlib.Path, manifest: Manifest) -> None:
  """Writes the manifest, which completes `checkpoint`; blocks until on disk.

  All other files must be on disk. Raises `OSError`.
  """
  content = {"format": _FORMAT} | json_lib.to_plain(manifest)
  content["sha256"] = _sha256(content)
  text = json.dumps(content, indent=1) + "\n"
  base.write_atomically(checkpoint / _NAME, text)
  sync(checkpoint)


def read_manifest(checkpoint: pathlib.Path) -> Manifest:
  """Returns the manifest of a checkpoint.

  Raises `base.DamagedCheckpointError`, which says why it is not complete, or
  `base.CheckpointError` if the folder is temporarily unreadable.
  """
  cannot = f"Cannot use checkpoint {checkpoint}"
  try:
    manifest = _parse((checkpoint / _NAME).read_bytes())
    problem = find_problem(checkpoint, manifest.files)
    if str(manifest.step) != checkpoint.name:
      problem = f"its manifest is of step {manifest.step}"
  except (FileNotFoundError, NotADirectoryError):
    problem = f"there is no {_NAME}"
  except (OSError, base.CheckpointError) as error:
    raise base.CheckpointError(f"{cannot}: {error}.") from error
  except (AttributeError, KeyError, TypeError, ValueError) as error:
    problem = f"{_NAME} is damaged: {type(error).__name__}: {error}"
  if problem:
    raise base.DamagedCheckpointError(f"{cannot}: {problem}.")
  return manifest


def _parse(data: bytes) -> Manifest:
  """Parses a manifest; raises various types if it is damaged.

  Raises `base.CheckpointError` if another version wrote it.
  """
  content = json.loads(data)
  found = content.pop("sha256", None)
  is_unsigned = content["format"] == _UNSIGNED
  if found != (None if is_unsigned else _sha256(content)):
    raise ValueError("its hash does not match")
  if content.pop("format") not in (_UNSIGNED, _WHOLE, _FORMAT):
    raise base.CheckpointError("it is of another version of this program")
  return json_lib.from_plain(Manifest, content)


def _sha256(content: Mapping[str, Any]) -> str:
  text = json.dumps(content, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()


def find_problem(checkpoint: pathlib.Path, files: Mapping[str, int]) -> str | None:
  """Returns a message on the first file of a wrong size; None if all fit."""
  for name, num_bytes in files.items():
    found = None
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
      status = os.stat(checkpoint / name)
      found = status.st_size if stat.S_ISREG(status.st_mode) else None
    if found != num_bytes:
      what = "is missing" if found is None else f"has {found} bytes"
      return f"{name} {what}; it should have {num_bytes} bytes"
  return None


def sync_files(checkpoint: pathlib.Path, item: str) -> dict[str, int]:
  """Returns the size of each file of an item, in bytes, by path.

  Blocks until all are on disk; the item may be absent.
  """
  sizes = {}
  for folder, _, names in os.walk(checkpoint / item):
    for name in sorted(names):
      path = pathlib.Path(folder, name)
      sizes[path.relative_to(checkpoint).as_posix()] = path.stat().st_size
      sync(path)
    sync(folder)
  sync(checkpoint)
  return sizes


def sync(path: str | os.PathLike[str]) -> None:
  """Blocks until a file, or the list of files of a directory, is on disk."""
  fd = os.open(path, os.O_RDONLY)
  try:
    os.fsync(fd)
  finally:
    os.close(fd)
