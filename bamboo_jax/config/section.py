"""Sections of options: frozen, checked when they are made, with help texts."""

from collections.abc import Iterator, Mapping
import dataclasses
import inspect
import json
import math
import types
import typing
from typing import Any, ClassVar, NamedTuple, Self

from bamboo_jax import base
from bamboo_jax.config.gone import GONE

_HELP, _LEAST, _CHOICES, _GONE = "help", "least", "choices", "gone"


def option(
    default: Any,
    help_text: str,
    *,
    least: float | None = None,
    choices: tuple[str, ...] = (),
    gone: Mapping[str, str] = types.MappingProxyType({}),
) -> Any:
  """Declares an option of a `Section`.

  Args:
    default: Its value in `configs/default.py`; a dict is copied.
    help_text: What it means, with its unit; for the reference page.
    least: Smallest value that is allowed; then infinity is not.
    choices: Values that are allowed; () allows all of its type.
    gone: Former choices, and what to use instead.
  """
  metadata = {_HELP: help_text, _LEAST: least, _CHOICES: choices, _GONE: gone}
  if isinstance(default, dict):
    make: Any = lambda: dict(default)
    return dataclasses.field(default_factory=make, metadata=metadata)
  return dataclasses.field(default=default, metadata=metadata)


def part(kind: "type[Section]") -> Any:
  """Declares a section within a section; its docstring is the help text."""
  return dataclasses.field(default_factory=kind, metadata={_HELP: kind.__doc__})


@dataclasses.dataclass(frozen=True)
class Section:
  """Options that belong together; subclasses are frozen dataclasses.

  A subclass passes `path`, its name in a config, such as "config.pipeline". Its
  options are fields made by `option` and `part`. Making a section raises
  `ValueError` for a value that is not allowed.
  """

  path: ClassVar[str]

  def __init_subclass__(cls, *, path: str) -> None:
    cls.path = path

  def __post_init__(self) -> None:
    for field in dataclasses.fields(self):
      value, least = getattr(self, field.name), field.metadata.get(_LEAST)
      name = f"{self.path}.{field.name}"
      if None not in (value, least) and not least <= value < math.inf:
        raise ValueError(f"{name} must be at least {least}, got {value}.")
      gone = field.metadata.get(_GONE)
      if gone and value in gone:
        raise ValueError(f"{name}={value!r} is gone; use {gone[value]}.")
      choices = field.metadata.get(_CHOICES)
      if choices and value not in choices:
        what = f"value of {name}"
        raise ValueError(base.suggest(value, choices, what=what))

  @classmethod
  def read(cls, values: Any) -> Self:
    """Returns the section of a `ConfigDict`, whose references are resolved.

    Raises `ValueError` if a key is misspelt or missing, a type differs, or a
    value is not allowed.
    """
    fields = kinds_of(cls)
    for key in values:
      if key not in fields:
        name, what = f"{cls.path}.{key}", f"key of {cls.path}:"
        if name in GONE:
          raise ValueError(f"{name} is gone: {GONE[name]}")
        raise ValueError(base.suggest(key, fields, what=what))
    for key in fields:
      if key not in values:
        raise ValueError(
            f"{cls.path}.{key} is missing; a config must start from " "configs/default.py."
        )
    return cls(
        **{key: _read(values[key], kind, f"{cls.path}.{key}") for key, kind in fields.items()}
    )

  def to_dict(self) -> dict[str, Any]:
    """Returns the options as a tree of plain dicts."""
    values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
    return {
        key: value.to_dict() if isinstance(value, Section) else value
        for key, value in values.items()
    }

  def to_json(self) -> dict[str, Any]:
    """Returns the options as values of JSON; the user's objects by name."""
    text = json.dumps(self.to_dict(), default=_name_of)
    plain: dict[str, Any] = json.loads(text)
    return plain

  def changed(self, changes: Mapping[str, Any]) -> Self:
    """Returns a copy with other values, by dotted name below this section."""
    values: dict[str, Any] = {}
    for name, value in changes.items():
      key, _, rest = name.partition(".")
      if rest:
        inner = values.get(key, getattr(self, key))
        if isinstance(inner, Section):
          value = inner.changed({rest: value})
        else:
          value = {**inner, rest: value}
      values[key] = value
    return dataclasses.replace(self, **values)


def kinds_of(section: type[Section]) -> dict[str, Any]:
  """Returns the type of each option of a section, by name."""
  hints = typing.get_type_hints(section)
  return {f.name: hints[f.name] for f in dataclasses.fields(section)}


class Option(NamedTuple):
  """An option of a run, or a section of them."""

  name: str  # With its sections: `pipeline.num_stages`.
  kind: str  # Its type, as in code.
  default: str  # As Python code; empty for a section.
  help: str


def list_options(section: type[Section], prefix: str = "") -> Iterator[Option]:
  """Yields the options of a section, and the sections in it, in order."""
  kinds, values = kinds_of(section), section().to_dict()
  for field in dataclasses.fields(section):
    key, kind, help_text = field.name, kinds[field.name], field.metadata[_HELP]
    if is_section(kind):
      yield Option(prefix + key, "section", "", help_text)
      yield from list_options(kind, f"{prefix}{key}.")
    else:
      yield Option(prefix + key, _render_kind(kind), repr(values[key]), help_text)


def _render_kind(kind: Any) -> str:
  return "dict" if typing.get_origin(kind) is Mapping else inspect.formatannotation(kind)


def is_section(kind: Any) -> bool:
  """Returns whether the type of an option is a section."""
  return isinstance(kind, type) and issubclass(kind, Section)


def without_none(kind: Any) -> Any:
  """Returns X for the type `X | None`, and other types as they are."""
  if not isinstance(kind, types.UnionType):
    return kind
  (other,) = (k for k in typing.get_args(kind) if k is not types.NoneType)
  return other


def _read(value: Any, kind: Any, name: str) -> Any:
  """Returns the value of an option; `ValueError` names one of another type."""
  plain = without_none(kind)
  container = typing.get_origin(kind)
  if is_section(kind) or container is Mapping:
    if not hasattr(value, "items"):
      raise ValueError(f"{name} must be a dict, got {value!r}.")
    return kind.read(value) if is_section(kind) else _to_plain(value)
  if container is tuple and isinstance(value, (list, tuple)):
    if None in value:
      raise ValueError(f"{name} must have a value, got {value}.")
    return tuple(value)
  if container is tuple or not base.fits(value, kind):
    wanted = (tuple if container is tuple else plain).__name__
    raise ValueError(f"{name} must be {wanted}, got {value!r}, {type(value).__name__}.")
  return value


def _name_of(value: Any) -> str:
  kind = value if hasattr(value, "__qualname__") else type(value)
  return f"{kind.__module__}.{kind.__qualname__}"


def _to_plain(value: Any) -> dict[str, Any]:
  return value.to_dict() if hasattr(value, "to_dict") else dict(value)
