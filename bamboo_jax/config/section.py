"""Sections of options: frozen, checked when they are made, with help texts; which are gone."""

from collections.abc import Callable, Iterator, Mapping
import dataclasses
import functools
import inspect
import json
import math
import operator
import types
import typing
from typing import Any, ClassVar, NamedTuple, Self

from bamboo_jax import base

LIMITS = "limits"  # In the metadata of a field.
# Options that are gone, and what follows "<option> is gone: ".
GONE: Mapping[str, str] = {
    "config.policies": "`bamboo simulate` takes them as --policies=A,B.",
    "config.sweep": "`bamboo simulate` takes an option and its values as --sweep=NAME=A,B.",
    "config.trace": (
        "config.study.trace says how preemptions are generated, --trace names a file of them."
    ),
    "config.workload": "config.model, config.pipeline and config.plan say what is trained.",
    "config.cluster.num_watchers": "an agent hears all others, each less often in large clusters.",
    "config.data.prefetch_steps": "the data of one step is prepared ahead, as 1 said.",
    "config.pipeline.head": (
        "head and loss of executor='spmd' run with the backward pass, which always took less time."
    ),
    "config.pipeline.ticks": (
        "a tick of executor='spmd' has two passes; where these need too much memory, "
        "take executor='rows'."
    ),
    "config.pipeline.unit": (
        "programs belong to blocks, as 'block' said; a model of your own whose layers are not "
        "called 'block.part' shares programs by layer."
    ),
    "config.plan.balance": (
        "stages are balanced by time, within plan.memory_limit_gib; set this limit lower for "
        "stages that need less memory."
    ),
    "config.recovery.preconnect": "nodes connect before they need each other, as True said.",
    "config.redundancy.overrun": "a pass of 'eager' may be late by 1.6 of itself, as 1.6 said.",
    "config.redundancy.rereplicate": (
        "replicas that died are made again as the step is committed, as 'at_commit' said."
    ),
    "config.redundancy.host_memory_gib": (
        "it only refused to start; `bamboo plan` tells what nodes keep in host memory, and "
        "redundancy.slots='device' or mode='lazy' keep less there."
    ),
}


@dataclasses.dataclass(frozen=True)
class Limits:
  """What an option or a flag means, and which values it may have.

  Attributes:
    help: Its meaning, with its unit; for the reference page.
    least: Smallest value; or the option beside it that has this value, as "most_silence_secs",
      or a multiple of it, as "2 heartbeat_secs".
    above: A value, or an option, that it must be above.
    most: Largest value. With one of these limits, infinity is not allowed.
    choices: Values that are allowed; () allows all of its type.
    gone: Former choices, and what to use instead.
  """

  help: str
  least: float | str | None = None
  above: float | str | None = None
  most: float | None = None
  choices: tuple[str, ...] = ()
  gone: Mapping[str, str] = dataclasses.field(default_factory=dict)

  def check(self, name: str, value: Any, find: Callable[[str], Any]) -> None:
    """Raises `ValueError` if the option `name` may not be `value`.

    Entries of a tuple are checked, and None is always allowed. `find` returns
    the value of another option.
    """
    if self.choices and isinstance(value, tuple) and len({*value}) < len(value):
      raise ValueError(f"{name} must have each value once, got {','.join(value)}.")
    for one in value if isinstance(value, tuple) else (value,):
      if one is None:
        continue
      if self.gone and one in self.gone:
        raise ValueError(f"{name}={one!r} is gone; use {self.gone[one]}.")
      if self.choices and one not in self.choices:
        raise ValueError(base.suggest(str(one), self.choices, what=f"value of {name}"))
      allowed, holds = [], True
      for limit, words, compare in (
          (self.least, "at least", operator.ge),
          (self.above, "above", operator.gt),
          (self.most, "at most", operator.le),
      ):
        if limit is not None:
          bound, text = limit, f"{limit}"
          if isinstance(limit, str):
            factor, _, other = limit.rpartition(" ")
            bound = float(factor or 1) * find(other)
            text = f"{limit} ({bound:g})"
          allowed.append(f"{words} {text}")
          holds = holds and compare(one, bound)
      if allowed and not (holds and math.isfinite(one)):
        raise ValueError(f"{name} must be {' and '.join(allowed)}, got {one}.")


def option(default: Any, help_text: str, **limits: Any) -> Any:
  """Declares an option of a `Section`.

  Args:
    default: Its value in `configs/default.py`; a dict is copied.
    help_text: What it means, with its unit; for the reference page.
    **limits: See `Limits`.
  """
  metadata = {LIMITS: Limits(help_text, **limits)}
  if isinstance(default, dict):
    make: Any = lambda: dict(default)
    return dataclasses.field(default_factory=make, metadata=metadata)
  return dataclasses.field(default=default, metadata=metadata)


def part(kind: "type[Section]") -> Any:
  """Declares a section within a section; its docstring is the help text."""
  return dataclasses.field(default_factory=kind, metadata={LIMITS: Limits(kind.__doc__ or "")})


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
      limits, name = field.metadata[LIMITS], f"{self.path}.{field.name}"
      limits.check(name, getattr(self, field.name), functools.partial(getattr, self))

  @classmethod
  def read(cls, values: Any) -> Self:
    """Returns the section of a `ConfigDict`, whose references are resolved.

    Raises `ValueError` if a key is misspelt or missing, a type differs, or a
    value is not allowed.
    """
    fields = kinds_of(cls)
    for key in values:
      cls._check_key(key, fields)
    for key in fields:
      if key not in values:
        raise ValueError(
            f"{cls.path}.{key} is missing; a config must start from " "configs/default.py."
        )
    return cls(
        **{key: _read(values[key], kind, f"{cls.path}.{key}") for key, kind in fields.items()}
    )

  @classmethod
  def _check_key(cls, key: str, fields: Mapping[str, Any]) -> None:
    if (name := f"{cls.path}.{key}") in GONE:
      raise ValueError(f"{name} is gone: {GONE[name]}")
    if key not in fields:
      raise ValueError(base.suggest(key, fields, what=f"key of {cls.path}:"))

  @classmethod
  def find_kind(cls, name: str) -> Any:
    """Returns the type of an option by its dotted name; of any key of a dict it is `Any`.

    Raises `ValueError` if there is no such option.
    """
    key, dot, rest = name.partition(".")
    kinds = kinds_of(cls)
    cls._check_key(key, kinds)
    if not dot:
      return kinds[key]
    if _is_section(kinds[key]):
      return kinds[key].find_kind(rest)
    if typing.get_origin(kinds[key]) is not Mapping:
      raise ValueError(f"{cls.path}.{key} has no keys, got --{cls.path}.{name}.")
    return Any

  def to_dict(self) -> dict[str, Any]:
    """Returns the options as a tree of plain dicts, which are its own."""
    return _to_plain(vars(self))

  def to_json(self) -> dict[str, Any]:
    """Returns the options as values of JSON; the user's objects by name."""
    text = json.dumps(self.to_dict(), default=_name_of)
    plain: dict[str, Any] = json.loads(text)
    return plain

  def changed(self, changes: Mapping[str, Any]) -> Self:
    """Returns a copy with other values, by dotted name below this section.

    Raises `ValueError` as `read` does.
    """
    tree = self.to_dict()
    for name, value in changes.items():
      self.find_kind(name)
      inner, (*sections, key) = tree, name.split(".")
      for i, section in enumerate(sections, 1):
        inner = inner.setdefault(section, {})
        if not isinstance(inner, dict):
          place = ".".join(sections[:i])
          raise ValueError(f"{self.path}.{place} is {inner!r}, so it has no {key!r}.")
      inner[key] = value
    return self.read(tree)


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
    key, kind, help_text = field.name, kinds[field.name], field.metadata[LIMITS].help
    if _is_section(kind):
      yield Option(prefix + key, "section", "", help_text)
      yield from list_options(kind, f"{prefix}{key}.")
    else:
      is_dict = typing.get_origin(kind) is Mapping
      name = "dict" if is_dict else inspect.formatannotation(kind)
      yield Option(prefix + key, name, repr(values[key]), help_text)


def _is_section(kind: Any) -> bool:
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
  if _is_section(kind) and isinstance(value, kind):
    return value
  if _is_section(kind) or container is Mapping:
    if not hasattr(value, "items"):
      raise ValueError(f"{name} must be a dict, got {value!r}.")
    return kind.read(value) if _is_section(kind) else _to_plain(value)
  if container is tuple and isinstance(value, (list, tuple)):
    if None in value:
      raise ValueError(f"{name} must have a value, got {value}.")
    entry = typing.get_args(kind)[0]
    for one in value:
      if not base.fits(one, entry):
        raise ValueError(
            f"{name} must have {entry.__name__} entries, got {one!r}, {type(one).__name__}."
        )
    return tuple(value)
  if container is tuple or not base.fits(value, kind):
    wanted = (tuple if container is tuple else plain).__name__
    raise ValueError(f"{name} must be {wanted}, got {value!r}, {type(value).__name__}.")
  return value


def _name_of(value: Any) -> str:
  kind = value if hasattr(value, "__qualname__") else type(value)
  return f"{kind.__module__}.{kind.__qualname__}"


def _to_plain(values: Any) -> dict[str, Any]:
  """Returns a tree of dicts: of sections, of dicts, or of a `ConfigDict`."""
  found = ((key, vars(v) if isinstance(v, Section) else v) for key, v in values.items())
  return {key: _to_plain(v) if hasattr(v, "items") else v for key, v in found}
