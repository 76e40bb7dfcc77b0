"""Values as JSON and back: dataclasses as objects, tuples and sorted sets as arrays.

Reading follows the annotations of a class, and is strict: a field that is missing
or of another type raises `ValueError`, which says where it is.
"""

from collections.abc import Mapping, Set
import dataclasses
import types
from typing import Any, overload, TypeVar

import msgspec

_T = TypeVar("_T")


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
  if isinstance(value, types.NoneType | bool | int | float | str):
    return value
  if dataclasses.is_dataclass(value) and not isinstance(value, type):
    return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
  if isinstance(value, Mapping):
    return {str(key): to_plain(v) for key, v in value.items()}
  if isinstance(value, Set):
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
  try:
    return msgspec.convert(content, cls, str_keys=True)
  except msgspec.ValidationError as error:
    raise ValueError(f"{where or getattr(cls, '__name__', cls)}: {error}.") from error
