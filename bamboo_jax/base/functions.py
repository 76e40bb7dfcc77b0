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
_IN_MODULE = re.compile(r"([^\W\d]\w*(?:\.\w+)*):[^\W\d]\w*")


def is_function_name(name: str) -> bool:
  """Returns whether a name has the form "file.py:function"; a path may have a colon, too."""
  return name.rpartition(":")[2].isidentifier() and ":" in name


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


def own_traceback(error: BaseException) -> types.TracebackType | None:
  """Returns the traceback of an error without the frames of others.

  What is left is the user's: not of this package, of Python, or of an installed
  package. Returns None if nothing is left.
  """
  frames, trace = [], error.__traceback__
  while trace is not None:
    if _is_own(pathlib.Path(trace.tb_frame.f_code.co_filename)):
      frames.append(trace)
    trace = trace.tb_next
  for frame in reversed(frames):
    trace = types.TracebackType(trace, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
  return trace


def render_own_traceback(error: BaseException | None) -> str:
  """Returns the lines of the user's that an error or its causes passed; "" if none."""
  while error is not None:
    if trace := own_traceback(error):
      lines = traceback.format_tb(trace)
      return "".join(["Traceback of your code (most recent call last):\n", *lines])
    error = error.__cause__
  return ""


def drop_other_frames(error: BaseException | None) -> None:
  """Leaves only the lines of the user's in the tracebacks of an error and its causes."""
  while error is not None:
    error.__traceback__ = own_traceback(error) or error.__traceback__
    error = error.__cause__


def find_own_line(error: BaseException) -> str:
  """Returns "file:line" of the last line in `own_traceback`; "" if there is none."""
  last = [*traceback.extract_tb(own_traceback(error))][-1:]
  return "".join(f"{frame.filename}:{frame.lineno}" for frame in last)


def _is_own(path: pathlib.Path) -> bool:
  """Returns whether a file is the user's: it is neither Python's nor installed."""
  is_installed = "site-packages" in path.parts or not path.is_file()
  return not is_installed and not any(map(path.absolute().is_relative_to, _LIBRARIES))


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
  """Returns a hash of each file of the user's code that a config names, by path.

  Of functions, in a file or a module, and of plugins; also of files beside them
  that they import. Paths of modules are relative to where Python finds them.
  Without loggers, which compute nothing.
  """
  named = [*_strings({k: v for k, v in config.items() if k not in ("metrics", "plugins")})]
  files = [pathlib.Path(match[1]) for match in map(_IN_FILE.fullmatch, named) if match]
  modules = [match[1] for match in map(_IN_MODULE.fullmatch, named) if match]
  # Where a file is, the start of its path in the result, and the rest of both.
  todo = [(file.parent, file.parent, pathlib.Path(file.name)) for file in files]
  for module in (*modules, *config.get("plugins", ())):
    todo += [(folder, pathlib.Path(), place) for folder, place in _find_module(module)]
  found: dict[str, str] = {}
  while todo:
    folder, start, place = todo.pop()
    path, name = folder / place, str(start / place)
    if name not in found and path.is_file():
      code = path.read_bytes()
      found[name] = hashlib.sha256(code).hexdigest()[:12]
      others = _find_imports(place, code) if _is_own(path) else ()
      todo += [(folder, start, other) for other in others if _is_own(folder / other)]
  return dict(sorted(found.items()))


def _find_module(name: str) -> Iterator[tuple[pathlib.Path, pathlib.Path]]:
  """Yields where the file of a module may be: a folder, and its path from there.

  Imports nothing.
  """
  top, *rest = name.split(".")
  spec = None
  with contextlib.suppress(ImportError, ValueError):  # `find_function` tells.
    spec = importlib.util.find_spec(top)
  if spec is not None:
    folders = [pathlib.Path(place).parent for place in spec.submodule_search_locations or ()]
    if not folders and spec.has_location and spec.origin and not rest:
      folders = [pathlib.Path(spec.origin).parent]
    for folder in folders:
      yield from ((folder, place) for place in _places_of(pathlib.Path(top, *rest)))


def _strings(value: Any) -> Iterator[str]:
  """Yields all strings in a tree of plain values."""
  if isinstance(value, str):
    yield value
  elif isinstance(value, Mapping):
    yield from itertools.chain.from_iterable(map(_strings, value.values()))
  elif isinstance(value, list | tuple):
    yield from itertools.chain.from_iterable(map(_strings, value))


def _find_imports(place: pathlib.Path, code: bytes) -> Iterator[pathlib.Path]:
  """Yields where the modules may be that the code at `place` imports.

  All paths are relative to the same folder.
  """
  with contextlib.suppress(SyntaxError, ValueError):  # `find_function` tells.
    for node in ast.walk(ast.parse(code)):
      if isinstance(node, ast.Import):
        for alias in node.names:
          yield from _places_of(pathlib.Path(*alias.name.split(".")))
      elif isinstance(node, ast.ImportFrom) and node.level < len(place.parents):
        start = place.parents[node.level - 1] if node.level else pathlib.Path()
        module = start.joinpath(*(node.module or "").split("."))
        for one in (module, *(module / alias.name for alias in node.names)):
          yield from _places_of(one)


def _places_of(module: pathlib.Path) -> Iterator[pathlib.Path]:
  if module.name:
    yield module.with_suffix(".py")
  yield module / "__init__.py"


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
