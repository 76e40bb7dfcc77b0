"""A folder of `peft`: the adapters of a model, which is in another folder.

adapter_config.json names that folder, and adapter_model.safetensors has the
tensors `lora_A` and `lora_B` of each adapted product.
"""

from collections.abc import Mapping
import dataclasses
import json
import pathlib
from typing import Any

import numpy as np

from bamboo_jax import base
from bamboo_jax.exchange import families, hub_folder
from bamboo_jax.models import model as model_lib, zoo
from bamboo_jax.models.text import transformer

_CONFIG, _FILE = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."  # Of the names of tensors.
_FIXED = {"peft_type": "LORA", "bias": "none"}
_READ = ("base_model_name_or_path", "lora_alpha", "r", "target_modules")
_HARMLESS = (  # Without effect on adapters that exist.
    *("auto_mapping", "fan_in_fan_out", "inference_mode", "megatron_core"),
    *("peft_version", "qalora_group_size", "revision"),
)
# Any other entry must be off, or have a value that is known to be harmless.
_OFF: tuple[Any, ...] = (None, False, "", [], {})
_ALLOWED: dict[str, tuple[Any, ...]] = {
    # "pissa", "olora" and others change the weights beside the adapters.
    "init_lora_weights": (True, "gaussian", "orthogonal"),
    "lora_dropout": (0, 0.0),
    "task_type": ("CAUSAL_LM",),
}
_TARGETS = (*transformer.LLAMA.names, *transformer.GPT2.names)
_WEIGHTS = {  # Of GPT-2; those of others are `TARGET/kernel`.
    "c_attn": ("qkv_weight",),
    "c_fc": ("up_weight",),
    "c_proj": ("out_weight", "down_weight"),
}


def is_folder(path: base.StrPath) -> bool:
  """Returns whether a folder has adapters."""
  return pathlib.Path(path, _CONFIG).is_file()


def find_base(path: base.StrPath) -> pathlib.Path:
  """Returns the folder that adapters name, which may be missing.

  Raises `base.CheckpointError` if their config is damaged.
  """
  path = pathlib.Path(path)
  named = hub_folder.read_json(path / _CONFIG).get("base_model_name_or_path")
  inner = path / str(named)
  return inner if inner.is_dir() else pathlib.Path(str(named))


def read_config(path: base.StrPath) -> tuple[pathlib.Path, dict[str, Any]]:
  """Returns the folder of the model without adapters, and the options of adapters.

  Raises `base.CheckpointError` if it is damaged, has settings that our models
  lack, or names a model that is not on this machine.
  """
  path = pathlib.Path(path)
  config = hub_folder.read_json(path / _CONFIG)
  problems = [
      f"{_CONFIG} has {key}={config.get(key)!r}, must be {value!r}"
      for key, value in _FIXED.items()
      if config.get(key) != value
  ]
  problems += [
      f"{_CONFIG} has {key}={value!r}, which our models do not have"
      for key, value in config.items()
      if key not in (*_READ, *_FIXED, *_HARMLESS)
      and not any(
          value == a and type(value) is type(a)  # Layer 0 is not "off".
          for a in (*_OFF, *_ALLOWED.get(key, ()))
      )
  ]
  targets = config.get("target_modules")
  if not (isinstance(targets, list) and targets and all(target in _TARGETS for target in targets)):
    problems.append(
        f"{_CONFIG} has target_modules={targets!r}, must be a list of " f"{', '.join(_TARGETS)}"
    )
  rank, alpha = config.get("r"), config.get("lora_alpha")
  if not isinstance(rank, int) or not isinstance(alpha, int | float):
    problems.append(f"{_CONFIG} has r={rank!r} and lora_alpha={alpha!r}")
  folder = find_base(path)
  if not folder.is_dir():
    problems.append(
        f"{_CONFIG} has base_model_name_or_path='{folder}', must be a folder "
        f"with the model without adapters.{hub_folder.hint_at_download(folder)}"
    )
  hub_folder.refuse(problems, where=path)
  assert isinstance(targets, list) and isinstance(alpha, int | float)
  chosen = [target for target in _TARGETS if target in targets]
  options = {"lora_rank": rank, "lora_alpha": float(alpha), "lora_targets": ",".join(chosen)}
  return folder, options


def drop_adapters(model: model_lib.Model) -> model_lib.Model:
  """Returns a model without its adapters; all of its weights are trained."""
  options = model.fingerprint.items()
  kept = {k: v for k, v in options if not k.startswith(transformer.PREFIX)}
  return model if len(kept) == len(options) else zoo.make_model(**kept)


def open_folder(path: base.StrPath, model: model_lib.Model) -> hub_folder.LayerReader:
  """Returns a function that reads the arrays of a layer, float32.

  Raises `base.CheckpointError` if the folders do not fit the model.
  """
  (folder, options), path = read_config(path), pathlib.Path(path)
  problems = [
      f"{_CONFIG} has {name}={value!r}, the model has {name}={ours!r}"
      for name, value in options.items()
      if (ours := _options_of(model)[name]) != value
  ]
  read_base = hub_folder.open_folder(folder, drop_adapters(model))
  shapes = families.shapes_of(model)
  tensors = hub_folder.read_header(path / _FILE)
  rules = _find_rules(model, shapes)
  read_own = hub_folder.open_tensors(tensors, rules, shapes, problems, where=path)
  return lambda layer: read_base(layer) | read_own(layer)


def write(
    path: base.StrPath,
    model: model_lib.Model,
    *,
    read: hub_folder.LayerReader,
    base_folder: str | None,
) -> None:
  """Writes a folder that `PeftModel.from_pretrained` loads.

  Args:
    path: Created if missing; must not hold weights yet.
    read: Returns the arrays of a layer.
    base_folder: Path of the model without adapters; None if it is not known.
  """
  from safetensors import numpy as safetensors

  path, options = pathlib.Path(path), _options_of(model)
  if options["lora_rank"] is None:
    raise ValueError(f"The model {model.name!r} has no adapters to write.")
  if hub_folder.is_hub_folder(path):
    raise ValueError(f"There are weights in {path} already.")
  path.mkdir(parents=True, exist_ok=True)
  tensors: hub_folder.Arrays = {}
  for rule in _find_rules(model, families.shapes_of(model)):
    tensors |= rule.to_theirs(read(rule.layer)[rule.array])
  safetensors.save_file(tensors, path / _FILE, metadata={"format": "pt"})
  config = {
      **_FIXED,
      "task_type": "CAUSAL_LM",
      "base_model_name_or_path": base_folder,
      "r": options["lora_rank"],
      "lora_alpha": options["lora_alpha"],
      "lora_dropout": 0.0,
      "target_modules": options["lora_targets"].split(","),
      "fan_in_fan_out": model.name == "gpt2",
      "inference_mode": True,
  }
  base.write_atomically(path / _CONFIG, json.dumps(config, indent=1))


def merge(model: model_lib.Model, arrays: Mapping[str, np.ndarray]) -> hub_folder.Arrays:
  """Returns the arrays of a layer with the adapters added to its weights."""
  options, merged = _options_of(model), dict(arrays)
  for target in _TARGETS:
    down, up = (
        merged.pop(f"params/{transformer.PREFIX}{part}_{target}/kernel", None) for part in "ab"
    )
    if down is not None:
      scale = np.float32(options["lora_alpha"] / options["lora_rank"])
      names_of = _WEIGHTS.get(target, (f"{target}/kernel",))
      (name,) = merged.keys() & {f"params/{name}" for name in names_of}
      added = down @ up
      if added.shape != merged[name].shape:  # Stored as [out, in].
        added = added.T
      merged[name] = merged[name] + scale * added
  return merged


def _options_of(model: model_lib.Model) -> dict[str, Any]:
  """Returns the options of the adapters of a model, with their defaults."""
  found = model.fingerprint
  rank = found.get("lora_rank")
  products = transformer.GPT2 if found["name"] == "gpt2" else transformer.LLAMA
  return {
      "lora_rank": rank,
      "lora_alpha": found.get("lora_alpha", rank),
      "lora_targets": found.get("lora_targets", products.default),
  }


def _find_rules(model: model_lib.Model, shapes: families.Shapes) -> list[families.Rule]:
  """Returns the rules of the tensors of the adapters."""
  return [
      dataclasses.replace(rule, tensors=(_PREFIX + rule.tensors[0],))
      for rule in families.rules_of(model.fingerprint, shapes)
      if rule.array.startswith(f"params/{transformer.PREFIX}")
  ]
