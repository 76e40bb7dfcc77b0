"""Functions of the user's own, by name: "file.py:function".

A config is data, and every process of a run reads the same one. So it names the
user's functions (a model, a source of data, an optimizer, ...), which each
process imports.
"""

import ast
from collections.abc import Callable, Iterator, Mapping
import contextlib
import hashlib
import importlib
import importlib.util
import itertools
import pathlib
import re
import sys
import sysconfig
import traceback
import types
from typing import Any

from bamboo_jax.base import names

_PACKAGE = pathlib.Path(__file__).resolve().parents[1]
_LIBRARIES = (
    pathlib.Path(sysconfig.get_path("stdlib")),
    _PACKAGE,
    *(_PACKAGE.parent / p for p in ("launch", "benchmarks", "reproductions")),
)

_IN_FILE = re.compile(r"(.+\.py):\w+")


def is_function_name(name: str) -> bool:
  """Returns whether a name has the form "file.py:function"."""
  return ":" in name


def find_function(name: str, *, what: str) -> Callable[..., Any]:
  """Returns the function that a name stands for.

  Args:
    name: "file.py:function", a path relative to the current folder; or
      "module:function", imported as Python does.
    what: What the function makes, such as "model"; for messages.

  Raises:
    ValueError: There is no such file, module or function, or its code raises.
  """
  place, _, function = name.rpartition(":")
  is_file = place.endswith(".py")
  try:
    load = _load if is_file else importlib.import_module
    module = load(place)
  except FileNotFoundError as error:
    raise ValueError(f"There is no {what} {name!r}: no file {place!r}.") from error
  except Exception as error:  # The user's code may raise anything.
    line = _line_of(error, place) if is_file else ""
    raise ValueError(
        f"There is no {what} {name!r}: {line}{type(error).__name__}: {error}"
    ) from error
  found: Callable[..., Any] | None = getattr(module, function, None)
  if callable(found):
    return found
  own = [k for k, v in vars(module).items() if callable(v) and k[0] != "_"]
  raise ValueError(
      f"There is no {what} {name!r}: "
      f"{names.suggest(function, own, what=f'function of {place}')}"
  )


def find_own_line(error: BaseException) -> str:
  """Returns "file:line" of the last line of the user's that an error passed.

  Returns "" if it passed none: all code is that of this package, of Python, or
  of an installed package.
  """
  for frame in reversed(traceback.extract_tb(error.__traceback__)):
    path = pathlib.Path(frame.filename)
    is_installed = "site-packages" in path.parts or not path.is_file()
    if not is_installed and not any(map(path.is_relative_to, _LIBRARIES)):
      return f"{frame.filename}:{frame.lineno}"
  return ""


def describe_error(error: BaseException) -> str:
  """Returns an error as one sentence, with the line of the user's code."""
  if isinstance(error, OSError) and error.strerror and error.filename:
    said = f"{error.filename}: {error.strerror}."
  elif isinstance(error, (ValueError, OSError)) and str(error):
    said = str(error)
  else:
    said = f"{type(error).__name__}: {error}"
  line = find_own_line(error)
  return f"{line}: {said}" if line else said


def find_code(config: Mapping[str, Any]) -> dict[str, str]:
  """Returns a hash of each file of the user's functions in a config, by path.

  Also of those beside it that it imports. Without loggers, which compute
  nothing.
  """
  named = _strings({k: v for k, v in config.items() if k != "metrics"})
  todo = [
      (pathlib.Path(match[1]).parent, pathlib.Path(match[1]))
      for match in map(_IN_FILE.fullmatch, named)
      if match is not None
  ]
  found: dict[str, str] = {}
  while todo:
    folder, path = todo.pop()
    if str(path) not in found and path.is_file():
      code = path.read_bytes()
      found[str(path)] = hashlib.sha256(code).hexdigest()[:12]
      todo += [(folder, other) for other in _find_imports(folder, code)]
  return dict(sorted(found.items()))


def _strings(value: Any) -> Iterator[str]:
  """Yields all strings in a tree of plain values."""
  if isinstance(value, str):
    yield value
  elif isinstance(value, Mapping):
    yield from itertools.chain.from_iterable(map(_strings, value.values()))
  elif isinstance(value, list | tuple):
    yield from itertools.chain.from_iterable(map(_strings, value))


def _find_imports(folder: pathlib.Path, code: bytes) -> Iterator[pathlib.Path]:
  """Yields where in `folder` the modules may be that code imports."""
  with contextlib.suppress(SyntaxError, ValueError):  # `find_function` tells.
    for node in ast.walk(ast.parse(code)):
      modules: list[str] = []
      if isinstance(node, ast.Import):
        modules = [alias.name for alias in node.names]
      elif isinstance(node, ast.ImportFrom) and node.module is not None:
        names = [f"{node.module}.{alias.name}" for alias in node.names]
        modules = [node.module, *names]
      for module in modules:
        place = folder.joinpath(*module.split("."))
        yield from (place.with_suffix(".py"), place / "__init__.py")


def allow_neighbours(file: pathlib.Path) -> None:
  """Lets a file of the user import others in its folder; installed ones win."""
  folder = str(file.resolve().parent)
  if folder not in sys.path:
    sys.path.append(folder)


def _load(file: str) -> types.ModuleType:
  """Returns the module of a file, loaded once unless the file changes.

  It may import its neighbours.
  """
  path = pathlib.Path(file).resolve(strict=True)
  version = f"{path} {path.stat().st_mtime_ns}"
  digest = hashlib.sha256(version.encode()).hexdigest()[:8]
  name = f"{path.stem}_{digest}"
  if name in sys.modules:
    return sys.modules[name]
  spec = importlib.util.spec_from_file_location(name, path)
  assert spec is not None and spec.loader is not None, path
  module = importlib.util.module_from_spec(spec)
  sys.modules[name] = module  # Dataclasses look their module up.
  allow_neighbours(path)
  try:
    spec.loader.exec_module(module)
  except BaseException:
    del sys.modules[name]
    raise
  return module


def _line_of(error: BaseException, file: str) -> str:
  """Returns the last line of the file that an error came through."""
  for frame in reversed(traceback.extract_tb(error.__traceback__)):
    if frame.filename.endswith(pathlib.Path(file).name):
      return f"{file}:{frame.lineno}: "
  return ""
