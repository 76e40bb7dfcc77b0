"""Values as JSON and back: one pair of functions for all dataclasses.

`to_plain` follows the value, `from_plain` follows the annotations of the class:

  value                          plain
  dataclass                      object, by field
  NamedTuple, tuple, list        array
  set, frozenset                 array, sorted
  dict with str or int keys      object
  None, bool, int, float, str    themselves; a `NewType` as its type

Reading is strict: a field that is missing, unknown or of another type raises
`ValueError`, which names it, such as `View.members[1].port`.
"""

from collections import abc
from collections.abc import Callable, Mapping
import dataclasses
import functools
import types
import typing
from typing import Any, overload, TypeVar

from bamboo_jax.base import names

_T = TypeVar("_T")
_SCALARS = (types.NoneType, bool, int, float, str)
_UNIONS = (types.UnionType, typing.Union)
_ARRAYS = (tuple, list, frozenset)
_MAPPINGS = (dict, abc.Mapping)


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
  """Returns the leaves of nested objects by dotted name; `{}` is a leaf."""
  found: dict[str, Any] = {}
  for key, value in tree.items():
    if isinstance(value, dict) and value:
      found |= flatten(value, f"{prefix}{key}.")
    else:
      found[f"{prefix}{key}"] = value
  return found


def to_plain(value: Any) -> Any:
  """Returns `value` as input of `json.dumps`, or raises `TypeError`."""
  if isinstance(value, _SCALARS):
    return value
  if dataclasses.is_dataclass(value) and not isinstance(value, type):
    names = (f.name for f in dataclasses.fields(value) if f.init)
    return {name: to_plain(getattr(value, name)) for name in names}
  if isinstance(value, Mapping):
    return {str(key): to_plain(v) for key, v in value.items()}
  if isinstance(value, abc.Set):
    return [to_plain(v) for v in sorted(value)]
  if isinstance(value, list | tuple):
    return [to_plain(v) for v in value]
  raise TypeError(f"{type(value).__name__} has no plain form: {value!r}.")


@overload
def from_plain(cls: type[_T], content: Any, *, where: str | None = None) -> _T:
  ...


@overload
def from_plain(cls: Any, content: Any, *, where: str | None = None) -> Any:
  ...


def from_plain(cls: Any, content: Any, *, where: str | None = None) -> Any:
  """Returns the value of type `cls` whose plain form is `content`.

  `cls` may be an annotation such as `tuple[View, ...]`; `Any` stays plain.
  Messages begin with `where`, such as a file's name; by default the name of
  `cls`. Raises `ValueError` if `content` does not fit or `cls` rejects it.
  """
  return _read(cls, content, where or str(getattr(cls, "__name__", cls)))


def _read(kind: Any, content: Any, where: str) -> Any:
  kind = _without_name(kind)
  origin = typing.get_origin(kind) or kind
  if kind is Any:
    return content
  if origin in _UNIONS:
    return _read_union(kind, content, where)
  if origin in _MAPPINGS:
    return _read_mapping(kind, content, where)
  if origin in _ARRAYS:
    return origin(_read_array(kind, content, where))
  if kind in _SCALARS or kind is None:
    return _read_scalar(kind, content, where)
  if dataclasses.is_dataclass(kind):
    return _read_dataclass(kind, content, where)
  if issubclass(kind, tuple):
    return _read_named_tuple(kind, content, where)
  raise TypeError(f"{where}: {kind} has no plain form.")


def _without_name(kind: Any) -> Any:
  """Returns the type of which a `NewType` is a name, or `kind` itself."""
  return getattr(kind, "__supertype__", kind)


def _read_union(kind: Any, content: Any, where: str) -> Any:
  """Returns `content` as the first type that fits, an exact one preferred."""
  kinds = tuple(map(_without_name, typing.get_args(kind)))
  if type(content) in kinds and type(content) in _SCALARS:
    return content
  errors = []
  for one in kinds:
    try:
      return _read(one, content, where)
    except ValueError as error:
      errors.append((one is not types.NoneType, error))
  raise max(errors, key=lambda e: e[0])[1]


def _read_mapping(kind: Any, content: Any, where: str) -> dict[Any, Any]:
  key_kind, value_kind = typing.get_args(kind) or (Any, Any)
  if not isinstance(content, Mapping):
    raise _misfit("an object", content, where)
  is_int = _without_name(key_kind) is int
  return {
      _int_key(key, where) if is_int else key: _read(value_kind, value, f"{where}[{key!r}]")
      for key, value in content.items()
  }


def _int_key(key: Any, where: str) -> int:
  try:
    return int(key)
  except ValueError:
    raise _misfit("a whole number as key", key, where) from None


def _read_array(kind: Any, content: Any, where: str) -> list[Any]:
  if not isinstance(content, list | tuple):
    raise _misfit("an array", content, where)
  kinds = typing.get_args(kind) or (Any, ...)
  is_fixed = typing.get_origin(kind) is tuple and kinds[-1] is not ...
  if not is_fixed:
    kinds = kinds[:1] * len(content)
  if len(kinds) != len(content):
    raise _misfit(f"{len(kinds)} entries", content, where)
  return [
      _read(one, entry, f"{where}[{i}]")
      for i, (one, entry) in enumerate(zip(kinds, content, strict=True))
  ]


def _read_scalar(kind: Any, content: Any, where: str) -> Any:
  if kind is float and type(content) is int:
    return float(content)
  if not isinstance(content, kind or types.NoneType) or (
      isinstance(content, bool) and kind is not bool
  ):
    raise _misfit(getattr(kind, "__name__", "null"), content, where)
  return content


def _read_dataclass(cls: Any, content: Any, where: str) -> Any:
  if not isinstance(content, Mapping):
    raise _misfit("an object", content, where)
  fields = {f.name: f for f in dataclasses.fields(cls) if f.init}
  for name in content:
    if name not in fields:
      raise ValueError(f"{where}: {names.suggest(name, fields, what='field')}")
  for name, field in fields.items():
    has_default = (
        field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
    )
    if name not in content and not has_default:
      raise ValueError(f"{where}: field {name!r} is missing.")
  hints = _hints(cls)
  values = {name: _read(hints[name], value, f"{where}.{name}") for name, value in content.items()}
  return _make(cls, where, **values)


def _read_named_tuple(cls: Any, content: Any, where: str) -> Any:
  hints = _hints(cls)
  if not isinstance(content, list | tuple) or len(content) != len(hints):
    raise _misfit(f"{len(hints)} entries", content, where)
  return cls(
      *(
          _read(hints[name], entry, f"{where}.{name}")
          for name, entry in zip(hints, content, strict=True)
      )
  )


def _make(cls: Callable[..., Any], where: str, *args: Any, **kwargs: Any) -> Any:
  """Returns `cls(...)`; its `ValueError` gets `where` in front."""
  try:
    return cls(*args, **kwargs)
  except ValueError as error:
    raise ValueError(f"{where}: {error}") from error


@functools.cache
def _hints(cls: Any) -> dict[str, Any]:
  return typing.get_type_hints(cls)


def _misfit(wanted: str, content: Any, where: str) -> ValueError:
  return ValueError(f"{where} must be {wanted}, got {content!r}.")
