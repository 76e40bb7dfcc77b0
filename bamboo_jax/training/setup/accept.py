"""Accepts the config of a file: its keys, values, folder and policy."""

import json
import pathlib
from typing import Any

from absl import logging
import ml_collections

from bamboo_jax import base, config as config_lib
from bamboo_jax.base import json as json_lib
from bamboo_jax.data import source, vocabularies
from bamboo_jax.metrics import loggers
from bamboo_jax.recovery import policies
from bamboo_jax.training.setup import sizes

_FROM_FOLDER = "init_from"  # A model with the name and sizes of the folder.


def accept(given: Any, *, is_study: bool = False) -> config_lib.Config:
  """Returns the options of a run, and what follows from them.

  Args:
    given: What `get_config()` of a config file has returned; or the result of
      an earlier call, which is returned.
    is_study: Whether the run is simulated, so that `config.study` counts.

  Raises:
    ValueError: A key is misspelt or missing, a value is not allowed, the policy, logger, price
      or machine is unknown, or options do not fit together.
  """
  if isinstance(given, config_lib.Config):
    return given
  if not isinstance(given, ml_collections.ConfigDict):
    raise ValueError(
        "get_config() of the config file must return an "
        f"ml_collections.ConfigDict, got {given!r}."
    )
  config = config_lib.Config.read(given)
  config = _set_policy(_fill_from_folder(config), is_study=is_study)
  loggers.parse_names(config.metrics.logger)
  sizes.find_price(config)
  sizes.find_machine(config)
  return config


def _set_policy(config: config_lib.Config, *, is_study: bool) -> config_lib.Config:
  """Returns `config` with its policy; a run does without what only simulations have."""
  policies.load_plugins(config.plugins)
  own = json_lib.flatten(config.study.to_dict())
  default = json_lib.flatten(config_lib.StudySection().to_dict())
  if not is_study and (given := [key for key in own if own[key] != default[key]]):
    raise ValueError(
        f"config.study.{given[0]}={own[given[0]]!r} is for `bamboo simulate`: a run has no "
        "config.study."
    )
  if (name := config.recovery.policy) is None:
    return config
  changes = dict(policies.find(name))
  if not is_study:
    if layout := changes.get("study.layout"):
      raise ValueError(
          f"config.recovery.policy={name!r} has study.layout={layout!r}, which only simulations "
          "have."
      )
    changes = {key: value for key, value in changes.items() if not key.startswith("study.")}
  return policies.apply(config, changes)


def _fill_from_folder(config: config_lib.Config) -> config_lib.Config:
  """Returns `config` with name and sizes of the model "init_from".

  A folder of `peft` names the folder of the model, and also sets adapters.
  Other options of the model stay. Texts of the source `files` are read with the
  tokenizer of the folder, unless an option names another.

  Raises:
    ValueError: There is no folder, or it is not of one of our models.
    base.CheckpointError: Its config.json is damaged or has unknown settings.
  """
  if config.model.name != _FROM_FOLDER:
    return config
  if config.init_from is None:
    raise ValueError(
        f"config.model.name={_FROM_FOLDER!r} needs the option "
        "config.init_from: a folder of Hugging Face."
    )
  # Imported late: it imports JAX, which other commands do not need.
  from bamboo_jax.exchange import adapters, families, hub_folder, weights

  path = folder = pathlib.Path(config.init_from)
  if adapters.is_folder(path):
    folder, _ = adapters.read_config(path)
  try:
    kind = json.loads((folder / "config.json").read_bytes())["model_type"]
  except (KeyError, OSError, TypeError, ValueError) as error:
    raise base.CheckpointError(
        f"config.init_from={str(folder)!r} must be a folder of Hugging Face with a config.json "
        f"that has a model_type: {getattr(error, 'strerror', None) or error}. For weights of a "
        f"run, config.model.name is that of its model.{hub_folder.hint_at_download(folder)}"
    ) from error
  kinds = {f.fixed["model_type"]: n for n, f in families.FAMILIES.items()}
  if kind not in kinds:
    raise ValueError(base.suggest(str(kind), kinds, what="model_type"))
  options = weights.read_options(path, kinds[kind])
  options |= config.model.options
  if "positions" in options and options.get("sequence_length"):
    if options["sequence_length"] > options["positions"]:
      logging.warning(
          "config.model.options.sequence_length=%d is shortened to %d, the "
          "positions of the model in %s.",
          *(options["sequence_length"], options["positions"], folder),
      )
      options["sequence_length"] = options["positions"]
  changes = {"model.name": kinds[kind], "model.options": options}
  if source.is_files(config.data.name) and any(
      (folder / name).is_file() for name in vocabularies.FILES
  ):
    own = {"tokenizer": str(folder)}
    changes["data.options"] = {**own, **config.data.options}
  return config.changed(changes)
