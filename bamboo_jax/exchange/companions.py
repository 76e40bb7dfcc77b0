"""The files beside weights: a tokenizer, and settings of text generation.

They accompany the weights: an import keeps them beside its checkpoint, and an
export finds them there, or in the folders named by the config.json of a run.
"""

from collections.abc import Iterator
import json
import os
import pathlib
import shutil

from absl import logging

from bamboo_jax import base

_NAMES = (
    "added_tokens.json",
    "chat_template.jinja",
    "generation_config.json",
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


def copy(source: str | os.PathLike[str], out: str | os.PathLike[str]) -> None:
  """Copies a tokenizer and settings from `source` to `out`, if they exist.

  Raises `OSError`.
  """
  for name in _NAMES:
    file = pathlib.Path(source, name)
    if file.is_file():
      shutil.copyfile(file, pathlib.Path(out, name))


def has_any(folder: str | os.PathLike[str]) -> bool:
  """Returns whether a folder has a tokenizer or settings of generation."""
  return any(pathlib.Path(folder, name).is_file() for name in _NAMES)


def find(path: str | os.PathLike[str]) -> pathlib.Path | None:
  """Returns the folder with the files that belong to a checkpoint's weights.

  `path` is a workdir, a checkpoint, or the folder of an import. None if no
  folder is known; warns if one is known but missing. Raises
  `base.CheckpointError` if a config is damaged.
  """
  folders = [pathlib.Path(path).absolute()]
  if folders[-1].name.isdecimal():  # A checkpoint.
    folders.append(folders[-1].parent)
  if folders[-1].name == "checkpoints":
    folders.append(folders[-1].parent)
  for folder in folders:
    if has_any(folder):
      return folder
    for source in find_sources(folder):
      if not source.is_dir():
        logging.warning("%s names %s, which does not exist.", folder, source)
      elif found := find(source):
        return found
  return None


def find_sources(workdir: pathlib.Path) -> Iterator[pathlib.Path]:
  """Yields the folders that the config of a run names."""
  file = workdir / "config.json"
  if not file.is_file():
    return
  try:
    config = json.loads(file.read_bytes())
  except ValueError as error:
    raise base.CheckpointError(f"Cannot read {file}: {error}.") from error
  if given := config.get("init_from"):
    yield pathlib.Path(given).absolute()
  if given := config.get("data", {}).get("options", {}).get("tokenizer"):
    path = pathlib.Path(given).absolute()
    yield path if path.is_dir() else path.parent
