"""The files beside weights: a tokenizer, and settings of text generation.

They accompany the weights: an import keeps them beside its checkpoint, and an
export finds them there, or in the folders named by the config.json of a run.
"""

from collections.abc import Iterator, Mapping
import json
import os
import pathlib
import shutil

from absl import logging

from bamboo_jax import base
from bamboo_jax.exchange import adapters

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


def copy(files: Mapping[str, pathlib.Path], out: pathlib.Path) -> None:
  """Copies files to the folder `out`; raises `OSError`."""
  for name, file in files.items():
    shutil.copyfile(file, out / name)


def find(path: str | os.PathLike[str], tokenizer: str | os.PathLike[str] | None = None) -> Files:
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
  for names in (_TOKENIZER, _GENERATION):
    found |= next(filter(None, (_list_files(f, names) for f in folders)), {})
  if tokenizer is None:
    return found
  return {n: file for n, file in found.items() if n in _GENERATION} | given


def _list_files(folder: str | os.PathLike[str], names: tuple[str, ...]) -> Files:
  files = {name: pathlib.Path(folder, name) for name in names}
  return {name: file for name, file in files.items() if file.is_file()}


def _find_folders(path: str | os.PathLike[str]) -> Iterator[pathlib.Path]:
  """Yields the folders that weights have been in, the newest first."""
  folders = [pathlib.Path(path).absolute()]
  if folders[-1].name.isdecimal():  # A checkpoint.
    folders.append(folders[-1].parent)
  if folders[-1].name == "checkpoints":
    folders.append(folders[-1].parent)
  for folder in folders:
    yield folder
    for source in _find_sources(folder):
      if source.is_dir():
        yield from _find_folders(source)
      else:
        logging.warning("%s names %s, which does not exist.", folder, source)


def _find_sources(workdir: pathlib.Path) -> Iterator[pathlib.Path]:
  """Yields the folders that the config of a run, or of adapters, names."""
  if adapters.is_folder(workdir):
    yield adapters.find_base(workdir).absolute()
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
