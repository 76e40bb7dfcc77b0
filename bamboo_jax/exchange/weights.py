"""Weights of a model in a folder of either kind, read layer by layer.

A folder holds safetensors files of `transformers`, or is one of our
checkpoints, or a workdir or folder with several, of which the newest is read.

Tokenizers and settings of text generation accompany the weights: an import keeps
them beside its checkpoint, and an export finds them there, or in the folders named
by the config.json of a run.
"""

from collections.abc import Callable, Iterator, Mapping
import functools
import os
import pathlib
import secrets
import shutil
from typing import Any

from absl import logging

from bamboo_jax import base
from bamboo_jax.checkpoint import (
    arrays as layer_arrays,
    contents,
    folder as folder_lib,
    manifest as manifest_lib,
)
from bamboo_jax.exchange import adapters, families, hub_folder
from bamboo_jax.models import layer as layer_lib, model as model_lib, zoo

_KINDS = ("params/", "stats/")  # Optimizer slots are not weights.
# Files beside weights: settings of text generation, and a tokenizer.
_GENERATION = ("generation_config.json",)
_TOKENIZER = (
    "added_tokens.json",
    "chat_template.jinja",
    "merges.txt",
    "preprocessor_config.json",
    "special_tokens_map.json",
    "spiece.model",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
)

Files = dict[str, pathlib.Path]  # By name.


def open_weights(
    path: base.StrPath, model: model_lib.Model
) -> Callable[[str], layer_lib.Variables]:
  """Returns a function from the name of a layer to its variables.

  Adapters are among these only if the folder has them.

  Raises:
    base.CheckpointError: There are no weights, or they are of another model;
      lists every missing or unknown array and every other shape.
  """
  if adapters.is_folder(path):
    read = adapters.open_folder(path, model)
  elif hub_folder.is_hub_folder(path):
    model = adapters.drop_adapters(model)
    read = hub_folder.open_folder(path, model)
  else:
    checkpoint, manifest = _find_checkpoint(path)
    if "lora_rank" not in manifest.meta["model"]:
      model = adapters.drop_adapters(model)
    read = _open_checkpoint(checkpoint, manifest, model)
  like = model.variable_shapes()
  return lambda name: layer_lib.restore_leaves(read(name), like[name])


def open_later(
    path: str | None, model: model_lib.Model
) -> Callable[[str], layer_lib.Variables] | None:
  """Returns `open_weights`, called by the first read; None without a path."""
  if path is None:
    return None
  read = functools.cache(lambda: open_weights(path, model))
  return lambda layer: read()(layer)


def import_folder(path: base.StrPath, *, name: str, out: base.StrPath) -> model_lib.Model:
  """Imports a folder of `transformers` or `peft` as the checkpoint `out`/0.

  Copies its tokenizer and settings of generation to `out`. Returns the model,
  with the sizes of config.json; `name` is that of the model in `zoo`.

  Raises:
    ValueError: The checkpoint exists already.
    base.CheckpointError: The folder does not fit such a model.
  """
  options = read_options(path, name)
  if "positions" in options:
    length = zoo.make_model(name).fingerprint["sequence_length"]
    options["sequence_length"] = min(length, options["positions"])
  model = zoo.make_model(name, **options)
  is_adapted = "lora_rank" in options
  read = (adapters if is_adapted else hub_folder).open_folder(path, model)
  if manifest_lib.find_newest(pathlib.Path(out)):
    raise ValueError(f"There is a checkpoint in {out} already; name another folder.")
  shutil.rmtree(pathlib.Path(out, "0"), ignore_errors=True)  # Of a failed import.
  folder = folder_lib.CheckpointFolder(out, keep=1, check_fence=lambda: None)
  first = manifest_lib.CheckpointName(1, 0, base.StepId(0), secrets.token_hex(3))
  parts = [folder.write_part(first, layer, {layer: read(layer)}) for layer in model.layer_names]
  meta: dict[str, Any] = {"model": dict(model.fingerprint), "token_ids": _find_token_ids(path)}
  if is_adapted:
    meta["config"] = {"init_from": os.path.abspath(path)}
  folder.finish(first, manifest_lib.join(parts, order=model.layer_names, meta=meta))
  _copy(find_companions(path), folder.path)
  return model


def read_options(path: base.StrPath, name: str) -> dict[str, Any]:
  """Returns the options of a model of `zoo` that a folder has the weights of.

  Raises `base.CheckpointError` if `path` is not a folder of such a model, or of
  its adapters.
  """
  folder = pathlib.Path(path)
  options: dict[str, Any] = {}
  if adapters.is_folder(path):
    folder, options = adapters.read_config(path)
  family = families.family_of(name)
  found, problems = hub_folder.read_options(folder, family)
  hub_folder.refuse(problems, where=folder)
  return found | options


def export_folder(
    path: base.StrPath,
    *,
    name: str,
    out: base.StrPath,
    max_file_bytes: int,
    kind: str = "hf",
    tokenizer: base.StrPath | None = None,
) -> int:
  """Writes the weights of a checkpoint for `transformers`; returns how many.

  Args:
    kind: "hf": adapters, if any, are added to the weights; "peft": adapters
      alone, for `peft`.
    tokenizer: Folder with the files of a tokenizer; None: the folder that the
      weights or the text of the run came from, if it is known.

  Raises:
    ValueError: `tokenizer` has no such files.
    base.CheckpointError: There is no checkpoint, or it is of another model.
  """
  checkpoint, manifest = _find_checkpoint(path)
  options = manifest.meta["model"]
  if options["name"] != name:
    raise base.CheckpointError(f"{checkpoint} is of the model {options['name']!r}, not {name!r}.")
  files = find_companions(path, tokenizer)
  model = zoo.make_model(**options)
  read = _open_checkpoint(checkpoint, manifest, model)
  merged = adapters.drop_adapters(model)
  num_params = merged.num_params()
  if kind == "peft":
    num_params = model.num_params() - num_params
    source: base.StrPath | None = _find_first(manifest)
    if source and adapters.is_folder(source):
      source, _ = adapters.read_config(source)
    is_there = source and hub_folder.is_hub_folder(source)
    folder = os.path.abspath(source) if source and is_there else None
    adapters.write(out, model, read=read, base_folder=folder)
  else:
    hub_folder.write(
        out,
        merged,
        read=lambda layer: adapters.merge(model, read(layer)),
        max_file_bytes=max_file_bytes,
        token_ids=_find_token_ids(checkpoint),
    )
  _copy(files, pathlib.Path(out))
  return num_params


def _find_token_ids(path: base.StrPath) -> dict[str, Any] | None:
  """Returns ids of special tokens, by their names in config.json.

  None if weights in `path` did not come from Hugging Face, or if it is not
  known any more.
  """
  path = adapters.find_base(path) if adapters.is_folder(path) else path
  file = pathlib.Path(path, "config.json")
  config = hub_folder.read_json(file) if file.is_file() else {}
  if hub_folder.is_hub_folder(path) or "model_type" in config:
    return families.pick_token_ids(config)
  checkpoint = manifest_lib.find_newest(pathlib.Path(path))
  if checkpoint is None:  # It has been removed; `find_companions` warns.
    return None
  manifest = manifest_lib.read_manifest(checkpoint)
  if "token_ids" in manifest.meta:
    return dict(manifest.meta["token_ids"])
  first = _find_first(manifest)
  return None if first is None else _find_token_ids(first)


def _find_first(manifest: manifest_lib.Manifest) -> str | None:
  """Returns the folder of the weights from which a run began; None: none."""
  first: str | None = manifest.meta.get("config", {}).get("init_from")
  return first


def _find_checkpoint(path: base.StrPath) -> tuple[pathlib.Path, manifest_lib.Manifest]:
  found = manifest_lib.find_newest(pathlib.Path(path))
  if found is None:
    raise base.CheckpointError(
        f"There are no weights in {path}: neither *.safetensors nor a checkpoint."
        f"{hub_folder.hint_at_download(path)}"
    )
  return found, manifest_lib.read_manifest(found)


def _open_checkpoint(
    path: pathlib.Path, manifest: manifest_lib.Manifest, model: model_lib.Model
) -> hub_folder.LayerReader:
  """Returns a function that reads a layer's arrays, without optimizer slots."""
  found = {
      f"{layer}: {name}": shape.shape
      for layer in manifest.layers
      for name, shape in layer_arrays.parse_specs(manifest.specs(layer)).items()
      if name.startswith(_KINDS)
  }
  wanted = {
      f"{layer}: {name}": shape
      for layer, shapes in families.shapes_of(model).items()
      for name, shape in shapes.items()
  }
  hub_folder.check(found, wanted, [], where=path)

  def read(layer: str) -> hub_folder.Arrays:
    arrays = contents.read_arrays(path, manifest, [layer])[layer]
    arrays = {k: a for k, a in arrays.items() if k.startswith(_KINDS)}
    if name := layer_arrays.find_nonfinite({layer: arrays}):
      raise base.CheckpointError(f"{path}: {name} has NaN or infinite values.")
    return arrays

  return read


def _copy(files: Mapping[str, pathlib.Path], out: pathlib.Path) -> None:
  """Copies files to the folder `out`; raises `OSError`."""
  for name, file in files.items():
    shutil.copyfile(file, out / name)


def find_companions(path: base.StrPath, tokenizer: base.StrPath | None = None) -> Files:
  """Returns the files that belong to the weights in a folder.

  `path` is a workdir, a checkpoint, the folder of an import, or one of Hugging
  Face. Of those that it came from the nearest with a tokenizer has that, and
  the nearest with settings of generation has these; the folder `tokenizer`
  comes first. Warns of a folder that is missing.

  Raises `ValueError` if there is no tokenizer in `tokenizer`, and
  `base.CheckpointError` if a config is damaged.
  """
  if tokenizer is not None and not (given := _list_files(tokenizer, (*_TOKENIZER, *_GENERATION))):
    raise ValueError(f"There is no tokenizer file in {tokenizer}.")
  folders, found = [*_find_folders(path)], Files()
  for wanted in (_TOKENIZER, _GENERATION):
    found |= next(filter(None, (_list_files(f, wanted) for f in folders)), {})
  if tokenizer is None:
    return found
  return {n: file for n, file in found.items() if n in _GENERATION} | given


def _list_files(folder: base.StrPath, names: tuple[str, ...]) -> Files:
  files = {name: pathlib.Path(folder, name) for name in names}
  return {name: file for name, file in files.items() if file.is_file()}


def _find_folders(path: base.StrPath) -> Iterator[pathlib.Path]:
  """Yields the folders that weights have been in, the newest first."""
  folders = [pathlib.Path(path).absolute()]
  if folders[-1].name.isdecimal():  # A checkpoint.
    folders.append(folders[-1].parent)
  if folders[-1].name == "checkpoints":
    folders.append(folders[-1].parent)
  for folder in folders:
    yield folder
    # What the config of a run, or of adapters, names.
    sources = [adapters.find_base(folder)] if adapters.is_folder(folder) else []
    file = folder / "config.json"
    config = hub_folder.read_json(file) if file.is_file() else {}
    if given := config.get("init_from"):
      sources.append(pathlib.Path(given))
    if given := config.get("data", {}).get("options", {}).get("tokenizer"):
      tokenizer = pathlib.Path(given).absolute()
      sources.append(tokenizer if tokenizer.is_dir() else tokenizer.parent)
    for source in (source.absolute() for source in sources):
      if source.is_dir():
        yield from _find_folders(source)
      else:
        logging.warning("%s names %s, which does not exist.", folder, source)
