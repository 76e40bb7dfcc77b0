"""Names and manifests of checkpoints.

A manifest has what is in a checkpoint, with sizes and hashes, and a hash of itself. It is
written last: a checkpoint without one, or with other sizes of files, is incomplete.
Paths in it begin where it is.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
import contextlib
import dataclasses
import functools
import hashlib
import json
import operator
import os
import pathlib
import re
import stat
from typing import Any, Self

from bamboo_jax import base
from bamboo_jax.base import json as json_lib

_FORMAT = 4
_UNSIGNED = 1  # The format that has no hash of the manifest.
_FORMER = "manifest.json"  # In a folder `STEP`, until format 3.
_SAVE = r"v(\d+)\.(\d+)-(\w+)"


@dataclasses.dataclass(frozen=True, order=True)
class CheckpointName:
  """The name of a checkpoint, never used twice; the newest is the greatest.

  Attributes:
    attempt: Counts the saves of a run, finished or not; 0 until format 3.
    incarnation: Identifies the process that began the save; "" until format 3.
  """

  attempt: int
  view: int
  step: base.StepId
  incarnation: str

  @classmethod
  def parse(cls, text: str) -> Self | None:
    """Returns the name "STEP.vVIEW.ATTEMPT-INCARNATION", None for other texts."""
    found = re.fullmatch(rf"(\d+)\.{_SAVE}", text)
    if found is None:
      return None
    return cls(int(found[3]), int(found[2]), base.StepId(int(found[1])), found[4])

  def __str__(self) -> str:
    return f"{self.step}.{self.save}"

  @property
  def save(self) -> str:
    """What distinguishes it from other checkpoints of the same step."""
    return f"v{self.view}.{self.attempt}-{self.incarnation}"

  @property
  def file(self) -> str:
    """Path of the manifest in the folder of the checkpoints."""
    return f"{self}.json" if self.incarnation else f"{self.step}/{_FORMER}"


@dataclasses.dataclass(frozen=True)
class LayerEntry:
  """Arrays of one layer.

  Attributes:
    item: Directory with the arrays.
    sha256: Hash of the bytes of the arrays in the order of their names.
    arrays: Dtype and shape of each array by name.
  """

  item: str
  sha256: str
  arrays: Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class Manifest:
  """The contents of a checkpoint, or of one member's part of it.

  Attributes:
    step: Number of steps that the state has seen.
    meta: Description of the run, plain JSON values; empty in a part.
    layers: The layers by name, in model order.
    files: Size in bytes of each file by its path.
    frozen: Arrays that never change, of layers that have such arrays.
  """

  step: base.StepId
  meta: Mapping[str, Any]
  layers: Mapping[str, LayerEntry]
  files: Mapping[str, int]
  frozen: Mapping[str, LayerEntry] = dataclasses.field(default_factory=dict)

  def specs(self, layer: str) -> dict[str, str]:
    """Returns dtype and shape of each array of a layer, by name."""
    parts = (self.layers, self.frozen)
    return {name: spec for p in parts if layer in p for name, spec in p[layer].arrays.items()}

  def find_items(self, layers: Collection[str]) -> dict[str, dict[str, LayerEntry]]:
    """Returns the entries of some layers, by directory and layer."""
    found: dict[str, dict[str, LayerEntry]] = {}
    for entries in (self.layers, self.frozen):
      for layer in layers:
        if layer in entries:
          found.setdefault(entries[layer].item, {})[layer] = entries[layer]
    return found


def find(folder: pathlib.Path) -> list[CheckpointName]:
  """Returns the names of the checkpoints in a folder, oldest first; raises `OSError`."""
  names = []
  for path in folder.iterdir():
    if path.suffix == ".json" and (name := CheckpointName.parse(path.stem)):
      names.append(name)
    elif path.name.isdecimal() and (path / _FORMER).exists():
      names.append(CheckpointName(0, 0, base.StepId(int(path.name)), ""))
  return sorted(names)


def find_newest(path: pathlib.Path) -> pathlib.Path | None:
  """Returns the newest manifest of a folder of checkpoints, a workdir, or one `STEP`.

  Also `path` itself, if it is a manifest; None if there is none.
  """
  if path.is_file():
    return path
  for folder in (path, path / "checkpoints"):
    if folder.is_dir() and (names := find(folder)):
      return folder / names[-1].file
  if not path.name.isdecimal() or not path.is_dir():
    return None
  names = [name for name in find(path.parent) if name.step == int(path.name)]
  return path.parent / names[-1].file if names else None


def join(parts: Collection[Manifest], *, order: Sequence[str], meta: Mapping[str, Any]) -> Manifest:
  """Returns the manifest of a checkpoint from the parts of all members.

  `order` is the model's; `meta` is the run's description, plain JSON values.
  """
  (step,) = {part.step for part in parts}
  layers, frozen, files = (
      {name: value for part in parts for name, value in of(part).items()}
      for of in map(operator.attrgetter, ("layers", "frozen", "files"))
  )
  return Manifest(step, meta, {name: layers[name] for name in order}, files, frozen)


def render(manifest: Manifest) -> bytes:
  """Returns the content of the file of a manifest."""
  content = {"format": _FORMAT} | json_lib.to_plain(manifest)
  content["sha256"] = _sha256(content)
  return f"{json.dumps(content, indent=1)}\n".encode()


def read_manifest(file: pathlib.Path) -> Manifest:
  """Returns the manifest of a checkpoint, whose files are in the same folder.

  Raises `base.DamagedCheckpointError`, which says why it is not complete, or
  `base.CheckpointError` if the folder is temporarily unreadable.
  """
  content, problem = None, None
  try:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
      content = file.read_bytes()
    manifest = parse(file, content)
    problem = find_problem(manifest.files, functools.partial(find_size, file.parent))
  except OSError as error:
    raise base.CheckpointError(f"Cannot use checkpoint {file}: {error}.") from error
  if problem:
    raise base.DamagedCheckpointError(f"Cannot use checkpoint {file}: {problem}.")
  return manifest


def parse(file: str | os.PathLike[str], content: bytes | None) -> Manifest:
  """Returns the manifest of a checkpoint from the content of its file; None: there is none.

  Raises `base.DamagedCheckpointError`, or `base.CheckpointError` if another version wrote it.
  """
  cannot, problem = f"Cannot use checkpoint {file}", "it does not exist"
  if content is not None:
    try:
      manifest = _parse(content)
      path = pathlib.PurePath(file)
      if re.match(rf"{manifest.step}\b", path.parent.name if path.name == _FORMER else path.name):
        return manifest
      problem = f"it is of step {manifest.step}"
    except base.CheckpointError as error:
      raise base.CheckpointError(f"{cannot}: {error}.") from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
      problem = f"it is damaged: {type(error).__name__}: {error}"
  raise base.DamagedCheckpointError(f"{cannot}: {problem}.")


def _parse(data: bytes) -> Manifest:
  """Parses a manifest; raises various types if it is damaged.

  Raises `base.CheckpointError` if another version wrote it.
  """
  content = json.loads(data)
  found = content.pop("sha256", None)
  if found != (None if content["format"] == _UNSIGNED else _sha256(content)):
    raise ValueError("its hash does not match")
  if content.pop("format") not in range(_UNSIGNED, _FORMAT + 1):
    raise base.CheckpointError("it is of another version of this program")
  # Of format 3; a list, as each entry loses the field.
  if any([entry.pop("frozen", None) for entry in content["layers"].values()]):
    raise base.CheckpointError(
        "its frozen weights are in another folder, which this version does not look for"
    )
  return json_lib.from_plain(Manifest, {"frozen": {}, **content})  # Not there until format 3.


def _sha256(content: Mapping[str, Any]) -> str:
  text = json.dumps(content, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()


def find_problem(files: Mapping[str, int], find_size: Callable[[str], int | None]) -> str | None:
  """Returns a message on the first file of a wrong size; None if all fit."""
  for name, num_bytes in files.items():
    if (found := find_size(name)) != num_bytes:
      what = "is missing" if found is None else f"has {found} bytes"
      return f"{name} {what}; it should have {num_bytes} bytes"
  return None


def find_size(root: pathlib.Path, name: str) -> int | None:
  """Returns the size of a file below `root` in bytes; None if there is none."""
  with contextlib.suppress(FileNotFoundError, NotADirectoryError):
    status = os.stat(root / name)
    return status.st_size if stat.S_ISREG(status.st_mode) else None
  return None
