"""Files that come with the package: configs, tables as CSV, and pages.

In the repository their folders stand beside the library, and within it once
installed. A table in a file of the user takes precedence over a packaged one;
the short name of a config, which has no suffix, over a file of the user.
"""

import os
import pathlib
import re

from bamboo_jax.base import names

_LIBRARY = pathlib.Path(__file__).resolve().parents[1]
_SHARED = ("zoo",)  # Functions that several configs use.


def folder(name: str) -> pathlib.Path:
  """Returns a packaged folder: `configs`, `docs`, `third_party/published`."""
  installed = _LIBRARY / name
  return installed if installed.is_dir() else _LIBRARY.parent / name


def find_file(path: str | os.PathLike[str]) -> pathlib.Path:
  """Returns the path of a file, or of the packaged table of that name.

  Tables are named as in the repository, `configs/quickstart_faults.csv`, or by
  their last part. Any other name is returned unchanged.
  """
  given = pathlib.Path(path)
  if given.exists() or given.suffix not in (".csv", ".json"):
    return given
  for name in ("configs", "configs/sim", "third_party/published"):
    if str(given) in (given.name, f"{name}/{given.name}"):
      packaged = folder(name) / given.name
      if packaged.is_file():
        return packaged
  return given


def locate_pages(text: str) -> str:
  """Returns a text that names pages by `docs/` with their paths here.

  They are relative to the current folder in a clone, and absolute elsewhere.
  """
  path = folder("docs")
  if path.is_relative_to(pathlib.Path.cwd()):
    path = path.relative_to(pathlib.Path.cwd())
  return re.sub(r"(?<![\w/])docs/(?=\w)", lambda _: f"{path}/", text)


def list_configs() -> list[str]:
  """Returns the short names of all packaged configs, such as `sim/compare`."""
  root = folder("configs")
  found = [p.relative_to(root).with_suffix("") for p in root.rglob("*.py")]
  return sorted(p.as_posix() for p in found if p.name not in ("__init__", *_SHARED))


def name_config(name: str) -> str:
  """Returns the short name of a config, for people; see `find_config`."""
  path, colon, argument = name.partition(":")
  short = path if path in list_configs() else pathlib.Path(path).stem
  return f"{short}{colon}{argument}"


def find_config(name: str) -> str:
  """Returns the path of a config, with the argument after its colon.

  Args:
    name: Short name of a packaged config, or path of a file; either may be
      followed by a colon and an argument, as in `gpt2:xl` and `mine.py:small`.

  Raises:
    ValueError: There is no such config or file.
  """
  path, colon, argument = name.partition(":")
  if path in (known := list_configs()):
    return f"{folder('configs') / path}.py{colon}{argument}"
  if os.path.isfile(path):
    return name
  if not path or path.endswith(".py") or path[0] in "/.~":
    message = f"There is no config file {path!r}."
    short = path.removeprefix("configs/").removesuffix(".py")
    if short in known:
      message += f" The packaged one is --config={short}{colon}{argument}"
    raise ValueError(message)
  raise ValueError(names.suggest(path, known, what="config"))
