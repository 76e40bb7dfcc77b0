"""A folder of `transformers`: config.json and safetensors files.

One file, `model.safetensors`, or several with an index. Layers are read one by
one, so a model may be larger than memory.

No tensor is ignored silently: each is a parameter, or a copy of one, or is
known to carry no information.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
import json
import math
import os
import pathlib
import re
from typing import Any, NamedTuple

from absl import logging
import numpy as np

from bamboo_jax import base
from bamboo_jax.exchange import families
from bamboo_jax.models import model as model_lib

_FILE = "model.safetensors"
_PART = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")
_DTYPES = ("F64", "F32", "F16", "BF16")  # Other dtypes need a scale, or are not floats.
_COPY_ROWS = 1024  # Compared at a time.

Arrays = dict[str, np.ndarray]
LayerReader = Callable[[str], Arrays]  # Of the arrays of a layer by name.


class Tensor(NamedTuple):
  """A tensor in a file, which may use an older name."""

  file: pathlib.Path
  name: str
  dtype: str
  shape: tuple[int, ...]


def is_hub_folder(path: base.StrPath) -> bool:
  """Returns whether there are safetensors files."""
  return any(pathlib.Path(path).glob("*.safetensors"))


def hint_at_download(path: base.StrPath) -> str:
  """Returns how to download a missing folder, if its name may be one of the hub; else ""."""
  named = re.fullmatch(r"(?:([\w-][\w.-]*)/)?([\w-][\w.-]*)", str(path))
  if named is None or os.path.exists(path) or (named[1] and os.path.exists(named[1])):
    return ""
  return (
      f" If that is the name of a model of Hugging Face, `hf download {path} "
      f"--local-dir={named[2]}` downloads it; then give {named[2]!r}."
  )


def read_options(path: base.StrPath, family: families.Family) -> tuple[dict[str, Any], list[str]]:
  """Returns `families.read_options` for the config.json in a folder.

  Raises `base.CheckpointError` if it is damaged.
  """
  file = pathlib.Path(path, "config.json")
  config = read_json(file)
  try:
    return families.read_options(family, config)
  except (ArithmeticError, TypeError, ValueError) as error:
    raise base.CheckpointError(
        f"Cannot use {file}: a value has the wrong type: {error}."
    ) from error


def read_json(file: pathlib.Path) -> dict[str, Any]:
  """Returns the object in a file; raises `base.CheckpointError`."""
  try:
    return dict(json.loads(file.read_bytes()))
  except (OSError, TypeError, ValueError) as error:
    hint = hint_at_download(file.parent)
    raise base.CheckpointError(f"Cannot read {file}: {error}.{hint}") from error


def open_folder(path: base.StrPath, model: model_lib.Model) -> LayerReader:
  """Returns a function that reads the arrays of a layer, float32.

  The function raises `base.CheckpointError` for NaN or infinite values.

  Raises:
    base.CheckpointError: The folder does not fit the model; lists all tensors
      that are missing, unknown or of another shape or dtype, copies that differ
      from the original, and options that differ.
  """
  path, options = pathlib.Path(path), model.fingerprint
  family = families.family_of(options["name"])
  found, problems = read_options(path, family)
  shapes = families.shapes_of(model)
  options = {"positions": options.get("sequence_length"), **options}
  problems += [
      f"config.json has {family.options[ours]}={value!r}, the model has "
      f"{ours}={options[ours]!r}"
      for ours, value in found.items()
      if value != options[ours]
  ]
  rules = families.rules_of(options, shapes)
  ours = {tensor for rule in rules for tensor in rule.tensors}
  known = ours | family.copies.keys()
  tensors: dict[str, Tensor] = {}  # That carry information, by their current names.
  for file in sorted(_find_files(path)):
    for name, tensor in read_header(path / file).items():
      name = re.sub(r"\.gamma$", ".weight", name)  # Of old files.
      name = re.sub(r"\.beta$", ".bias", name)
      if family.prefix + name in known:
        name = family.prefix + name
      if name not in known and re.search(family.ignored, name):
        continue
      if name in tensors:
        raise base.CheckpointError(
            f"Cannot use {path}: {name} occurs twice, in {tensors[name].file.name} and {file}."
        )
      tensors[name] = tensor
  copies = family.copies.keys() & tensors.keys() - ours
  read = open_tensors(tensors, rules, shapes, problems, where=path, copies=copies)
  unequal = [  # Reads data, so only if all else fits.
      f"{name} differs from {family.copies[name]}; the model ties them"
      for name in sorted(copies)
      if not _are_equal(tensors[name], tensors[family.copies[name]])
  ]
  refuse(unequal, where=path)
  return read


def open_tensors(
    tensors: Mapping[str, Tensor],
    rules: Sequence[families.Rule],
    shapes: families.Shapes,
    problems: Iterable[str],
    *,
    where: pathlib.Path,
    copies: Collection[str] = (),
) -> LayerReader:
  """Returns a function that reads the arrays of a layer, as `open_folder`.

  Raises `base.CheckpointError` for `problems`, and for tensors other than `copies` that do not
  fit the rules.
  """
  wanted = {
      tensor: rule.their_shape(shapes[rule.layer][rule.array])
      for rule in rules
      for tensor in rule.tensors
  }
  found = {name: tensor.shape for name, tensor in tensors.items() if name not in copies}
  odd = (
      f"dtype: {name} is {tensor.dtype}, must be one of {', '.join(_DTYPES)}"
      for name, tensor in sorted(tensors.items())
      if tensor.dtype not in _DTYPES
  )
  check(found, wanted, [*problems, *odd], where=where)
  return lambda layer: {
      rule.array: rule.to_ours([_read(tensors[t]) for t in rule.tensors], shapes[layer][rule.array])
      for rule in rules
      if rule.layer == layer
  }


def check(
    found: Mapping[str, tuple[int, ...]],
    wanted: Mapping[str, tuple[int, ...]],
    problems: list[str],
    *,
    where: pathlib.Path,
) -> None:
  """Raises `base.CheckpointError` if there are problems or shapes differ."""
  for name in sorted(wanted.keys() | found.keys()):
    if name not in found:
      problems.append(f"missing: {name} {list(wanted[name])}")
    elif name not in wanted:
      problems.append(f"unknown: {name} {list(found[name])}")
    elif found[name] != wanted[name]:
      shapes = f"{list(found[name])}, must be {list(wanted[name])}"
      problems.append(f"shape: {name} is {shapes}")
  refuse(problems, where=where)


def refuse(problems: Sequence[str], *, where: pathlib.Path) -> None:
  """Raises `base.CheckpointError` if there are problems."""
  if problems:
    raise base.CheckpointError("\n  ".join([f"{where} does not fit the model:", *problems]))


def write(
    path: base.StrPath,
    model: model_lib.Model,
    *,
    read: LayerReader,
    max_file_bytes: int,
    token_ids: Mapping[str, Any] | None = None,
) -> None:
  """Writes a folder that `from_pretrained` of `transformers` loads.

  Args:
    path: Created if missing; must not hold weights yet.
    max_file_bytes: Maximum size of a file with more than one layer.
    token_ids: Ids of special tokens, see `families.make_config`.
  """
  from safetensors import numpy as safetensors

  path, shapes = pathlib.Path(path), families.shapes_of(model)
  config = families.make_config(model.fingerprint, token_ids)
  if is_hub_folder(path):
    raise ValueError(f"There are weights in {path} already.")
  path.mkdir(parents=True, exist_ok=True)
  groups: list[list[str]] = [[]]
  size = 0
  for layer, arrays in shapes.items():
    size += (num_bytes := 4 * sum(map(math.prod, arrays.values())))
    if groups[-1] and size > max_file_bytes:
      groups.append([])
      size = num_bytes
    groups[-1].append(layer)
  rules = families.rules_of(model.fingerprint, shapes)
  places: dict[str, str] = {}
  total = 0
  for number, group in enumerate(groups, start=1):
    file = f"model-{number:05d}-of-{len(groups):05d}.safetensors"
    file = file if len(groups) > 1 else _FILE
    tensors: dict[str, np.ndarray] = {}
    for layer in group:
      arrays = read(layer)
      for rule in rules:
        if rule.layer == layer:
          tensors |= rule.to_theirs(arrays[rule.array])
    tensors = {k: v for k, v in tensors.items() if k not in places}  # Tied.
    safetensors.save_file(tensors, path / file, metadata={"format": "pt"})
    places |= dict.fromkeys(tensors, file)
    total += sum(tensor.nbytes for tensor in tensors.values())
  if len(groups) > 1:
    index = {"metadata": {"total_size": total}, "weight_map": places}
    base.write_atomically(path / f"{_FILE}.index.json", json.dumps(index))
  base.write_atomically(path / "config.json", json.dumps(config, indent=1))


def read_header(file: pathlib.Path) -> dict[str, Tensor]:
  """Returns the tensors of a file; raises `base.CheckpointError`."""
  with _open(file) as opened:
    parts = {name: opened.get_slice(name) for name in opened.keys()}
    return {n: Tensor(file, n, p.get_dtype(), tuple(p.get_shape())) for n, p in parts.items()}


def _find_files(path: pathlib.Path) -> set[str]:
  """Returns the names of the files with the weights; logs the unused ones.

  The order of preference is that of `transformers`.
  """
  index = path / f"{_FILE}.index.json"
  every = {file.name for file in path.glob("*.safetensors")}
  if _FILE in every:
    files = {_FILE}
  elif index.exists():
    named = read_json(index).get("weight_map")
    if not isinstance(named, dict) or not all(isinstance(file, str) for file in named.values()):
      raise base.CheckpointError(
          f"Cannot use {index}: its weight_map must name the file of each tensor, got {named!r}."
      )
    files = {*named.values()}
  else:
    parts = {name for name in every if _PART.fullmatch(name)}
    files = parts or every
    if not parts and len(every) > 1:
      raise base.CheckpointError(
          f"Cannot use {path}: none of {', '.join(sorted(every))} is {_FILE}, "
          "and there is no index."
      )
  if others := every - files:
    logging.warning(
        "Weights of %s are read from %s; not read: %s.", *(path, _list(files), _list(others))
    )
  return files


def _list(files: Iterable[str]) -> str:
  first, *more = sorted(files)
  return f"{first} and {len(more)} more" if len(more) > 2 else ", ".join([first, *more])


def _are_equal(one: Tensor, other: Tensor) -> bool:
  if one.shape != other.shape:
    return False
  num_rows = one.shape[0]
  with _open(one.file) as first, _open(other.file) as second:
    slices = first.get_slice(one.name), second.get_slice(other.name)
    return all(
        np.array_equal(*(s[at : min(at + _COPY_ROWS, num_rows)] for s in slices))
        for at in range(0, num_rows, _COPY_ROWS)
    )


def _read(tensor: Tensor) -> np.ndarray:
  with _open(tensor.file) as tensors:
    with np.errstate(over="ignore"):  # It overflows to infinity.
      array = np.asarray(tensors.get_tensor(tensor.name), np.float32)
  if not np.isfinite(array).all():
    raise base.CheckpointError(
        f"{tensor.file}: the tensor {tensor.name} has NaN or infinite numbers, "
        "which no step can train with."
    )
  return array


def _open(file: pathlib.Path) -> Any:
  import safetensors

  try:
    return safetensors.safe_open(file, framework="numpy")
  except (OSError, safetensors.SafetensorError) as error:
    raise base.CheckpointError(f"Cannot read {file}: {error}.") from error
