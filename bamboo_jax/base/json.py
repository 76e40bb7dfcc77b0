"""Values as JSON and back: dataclasses as objects, tuples and sorted sets as arrays.

Reading follows the annotations of a class, and is strict: a field that is missing, unknown
or of another type raises `ValueError`, which says where it is, such as `View.members[1].port`.
"""

from collections.abc import Collection, Mapping, Set
import dataclasses
import re
import types
from typing import Any, overload, TypeVar

import msgspec

from bamboo_jax.base import names

_T = TypeVar("_T")


def flatten(
    tree: Mapping[str, Any], prefix: str = "", *, leaves: Collection[str] = ()
) -> dict[str, Any]:
  """Returns the leaves of nested objects by dotted name; `{}` and what `leaves` names are some."""
  found: dict[str, Any] = {}
  for key, value in tree.items():
    if isinstance(value, dict) and value and key not in leaves:
      found |= flatten(value, f"{prefix}{key}.", leaves=leaves)
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
  where = where or str(getattr(cls, "__name__", cls))
  try:
    value = msgspec.convert(content, cls, str_keys=True)
  except msgspec.ValidationError as error:
    raise ValueError(_explain(f"{error}", content, where)) from error
  _refuse_unknown(content, value, where)
  return value


def _explain(text: str, content: Any, where: str) -> str:
  """Returns the message of msgspec with the place in front, and the value if it has one."""
  match = re.fullmatch(r"(.*?)(?: - at (`.*`))?", text, flags=re.DOTALL)
  assert match is not None, text
  text, place = match[1], match[2] or ""
  path = re.sub(r"^.*\$|`$", "", place)
  if text.startswith("Expected") and "key" not in place and "..." not in path:
    for field, index in re.findall(r"\.(\w+)|\[(\d+)\]", path):
      content = content[field or int(index)]
    text = f"{text}: {content!r}"
  return f"{where}{path}: {text.rstrip('.')}."


def _refuse_unknown(content: Any, value: Any, where: str) -> None:
  """Raises `ValueError` if an object of `content` has a field that its dataclass has not."""
  if dataclasses.is_dataclass(value):
    fields = [f.name for f in dataclasses.fields(value)]
    for name, part in content.items():
      if name not in fields:
        raise ValueError(f"{where}: {names.suggest(name, fields, what='field')}")
      _refuse_unknown(part, getattr(value, name), f"{where}.{name}")
  elif isinstance(value, Mapping):
    for (key, part), one in zip(content.items(), value.values(), strict=False):
      _refuse_unknown(part, one, f"{where}[{key!r}]")
  elif isinstance(value, list | tuple):
    for i, (part, one) in enumerate(zip(content, value, strict=True)):
      _refuse_unknown(part, one, f"{where}[{i}]")
