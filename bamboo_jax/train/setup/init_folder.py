"""Takes model and tokenizer from the folder that `config.init_from` names."""

import json
import pathlib

from bamboo_jax import base
from bamboo_jax import config as config_lib
from bamboo_jax.data import source
from bamboo_jax.data import vocabularies

NAME = "init_from"  # Of a model whose name and sizes are those of the folder.


def fill(config: config_lib.Config) -> config_lib.Config:
  """Returns `config` with name and sizes of the model "init_from".

  A folder of `peft` names the folder of the model, and also sets adapters.
  Other options of the model stay. Texts of the source `files` are read with the
  tokenizer of the folder, unless an option names another.

  Raises:
    ValueError: There is no folder, or it is not of one of our models.
    base.CheckpointError: Its config.json is damaged or has unknown settings.
  """
  if config.model.name != NAME:
    return config
  if config.init_from is None:
    raise ValueError(
        f"config.model.name={NAME!r} needs the option config.init_from: a "
        "folder of Hugging Face."
    )
  # Imported late: it imports JAX, which other commands do not need.
  from bamboo_jax.exchange import adapters
  from bamboo_jax.exchange import hub_config
  from bamboo_jax.exchange import weights

  path = folder = pathlib.Path(config.init_from)
  if adapters.is_folder(path):
    folder = adapters.read_config(path).base
  try:
    found = json.loads((folder / "config.json").read_bytes())
  except (OSError, ValueError) as error:
    raise base.CheckpointError(
        f"config.init_from={str(folder)!r} must be a folder of Hugging Face "
        f"with a config.json: {error}."
    ) from error
  kinds = {f.fixed["model_type"]: n for n, f in hub_config.FAMILIES.items()}
  kind = found.get("model_type")
  if kind not in kinds:
    raise ValueError(base.suggest(str(kind), kinds, what="model_type"))
  options = weights.read_options(path, kinds[kind])
  options |= config.model.options
  if "positions" in options and options.get("sequence_length"):
    longest = min(options["sequence_length"], options["positions"])
    options["sequence_length"] = longest
  changes = {"model.name": kinds[kind], "model.options": options}
  if source.is_files(config.data.name) and any(
      (folder / name).is_file() for name in vocabularies.FILES
  ):
    own = {"tokenizer": str(folder)}
    changes["data.options"] = {**own, **config.data.options}
  return config.changed(changes)
