"""Weights of a model in a folder of either kind, read layer by layer.

A folder holds safetensors files of `transformers`, or is one of our
checkpoints, or a workdir or folder with several, of which the newest is read.
"""

from collections.abc import Callable
import functools
import os
import pathlib
import secrets
import shutil
from typing import Any

from bamboo_jax import base
from bamboo_jax.checkpoint import (
    arrays as layer_arrays,
    contents,
    folder as folder_lib,
    manifest as manifest_lib,
)
from bamboo_jax.exchange import adapters, companions, hub_config, hub_folder, names
from bamboo_jax.models import layer as layer_lib, model as model_lib, zoo

_KINDS = ("params/", "stats/")  # Optimizer slots are not weights.


def open_weights(
    path: str | os.PathLike[str], model: model_lib.Model
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
    checkpoint = _find_checkpoint(path)
    if "lora_rank" not in _options_of(checkpoint):
      model = adapters.drop_adapters(model)
    read = _open_checkpoint(checkpoint, model)
  like = model.variable_shapes()
  return lambda name: layer_arrays.restore_layer(read(name), like[name])


def open_later(
    path: str | None, model: model_lib.Model
) -> Callable[[str], layer_lib.Variables] | None:
  """Returns `open_weights`, called by the first read; None without a path."""
  if path is None:
    return None
  read = functools.cache(lambda: open_weights(path, model))
  return lambda layer: read()(layer)


def import_folder(
    path: str | os.PathLike[str], *, name: str, out: str | os.PathLike[str]
) -> model_lib.Model:
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
  companions.copy(companions.find(path), folder.path)
  return model


def read_options(path: str | os.PathLike[str], name: str) -> dict[str, Any]:
  """Returns the options of a model of `zoo` that a folder has the weights of.

  Raises `base.CheckpointError` if `path` is not a folder of such a model, or of
  its adapters.
  """
  folder = pathlib.Path(path)
  options: dict[str, Any] = {}
  if adapters.is_folder(path):
    folder, options = adapters.read_config(path)
  family = hub_config.family_of(name)
  found, problems = hub_folder.read_options(folder, family)
  hub_folder.check({}, {}, problems, where=folder)
  return found | options


def export_folder(
    path: str | os.PathLike[str],
    *,
    name: str,
    out: str | os.PathLike[str],
    max_file_bytes: int,
    kind: str = "hf",
    tokenizer: str | os.PathLike[str] | None = None,
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
  checkpoint = _find_checkpoint(path)
  options = _options_of(checkpoint)
  if options["name"] != name:
    raise base.CheckpointError(f"{checkpoint} is of the model {options['name']!r}, not {name!r}.")
  files = companions.find(path, tokenizer)
  model = zoo.make_model(**options)
  read, merged = _open_checkpoint(checkpoint, model), adapters.drop_adapters(model)
  num_params = merged.num_params()
  if kind == "peft":
    num_params = model.num_params() - num_params
    adapters.write(out, model, read=read, base_folder=_find_base(checkpoint))
  else:
    hub_folder.write(
        out,
        merged,
        read=lambda layer: adapters.merge(model, read(layer)),
        max_file_bytes=max_file_bytes,
        token_ids=_find_token_ids(checkpoint),
    )
  companions.copy(files, pathlib.Path(out))
  return num_params


def _find_token_ids(path: str | os.PathLike[str]) -> dict[str, Any] | None:
  """Returns ids of special tokens, by their names in config.json.

  None if weights in `path` did not come from Hugging Face, or if it is not
  known any more.
  """
  path = adapters.find_base(path) if adapters.is_folder(path) else path
  file = pathlib.Path(path, "config.json")
  config = hub_folder.read_json(file) if file.is_file() else {}
  if hub_folder.is_hub_folder(path) or "model_type" in config:
    return hub_config.pick_token_ids(config)
  checkpoint = manifest_lib.find_newest(pathlib.Path(path))
  if checkpoint is None:  # It has been removed; `companions` warns.
    return None
  meta = manifest_lib.read_manifest(checkpoint).meta
  if "token_ids" in meta:
    return dict(meta["token_ids"])
  first = _find_first(checkpoint)
  return None if first is None else _find_token_ids(first)


def _options_of(checkpoint: pathlib.Path) -> dict[str, Any]:
  """Returns the options of the model of a checkpoint."""
  return dict(manifest_lib.read_manifest(checkpoint).meta["model"])


def _find_first(checkpoint: pathlib.Path) -> str | None:
  """Returns the folder of the weights from which a run began; None: none."""
  meta = manifest_lib.read_manifest(checkpoint).meta
  first: str | None = meta.get("config", {}).get("init_from")
  return first


def _find_base(checkpoint: pathlib.Path) -> str | None:
  """Returns the folder of the model without adapters, if it is there."""
  source: str | os.PathLike[str] | None = _find_first(checkpoint)
  if source and adapters.is_folder(source):
    source = adapters.read_config(source).base
  is_there = source and hub_folder.is_hub_folder(source)
  return os.path.abspath(source) if source and is_there else None


def _find_checkpoint(path: str | os.PathLike[str]) -> pathlib.Path:
  found = manifest_lib.find_newest(pathlib.Path(path))
  if found is None:
    raise base.CheckpointError(
        f"There are no weights in {path}: neither *.safetensors nor a checkpoint."
        f"{hub_folder.hint_at_download(path)}"
    )
  return found


def _open_checkpoint(
    path: pathlib.Path, model: model_lib.Model
) -> Callable[[str], hub_folder.Arrays]:
  """Returns a function that reads a layer's arrays, without optimizer slots."""
  manifest = manifest_lib.read_manifest(path)
  found = {
      f"{layer}: {name}": shape.shape
      for layer in manifest.layers
      for name, shape in layer_arrays.parse_specs(manifest.specs(layer)).items()
      if name.startswith(_KINDS)
  }
  wanted = {
      f"{layer}: {name}": shape
      for layer, shapes in names.shapes_of(model).items()
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
