"""Flags of a command: a frozen dataclass, whose fields are made by `flag`.

  @dataclasses.dataclass(frozen=True)
  class TraceFlags:
    trace: str | None = flagset.flag(None, "File of events.")
    time_scale: float = flagset.flag(1.0, "Multiply all times.", above=0, needs="trace")

One declaration makes the flags of absl, the help and all checks, and `to_argv`
passes them to child processes. `part` includes the flags of another dataclass.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
import csv
import dataclasses
import textwrap
import typing
from typing import Any, TypeVar

from absl import flags

from bamboo_jax import base, config as config_lib
from bamboo_jax.cli import config_flag

flags.disclaim_key_flags()
_T = TypeVar("_T")
_FOLDERS = ("out", "workdir", "workdirs")  # Flags of all commands.


def flag(
    default: Any,
    help_text: str,
    *,
    is_needed: bool = False,
    needs: str = "",
    excludes: str = "",
    is_repeated: bool = False,
    takes_rest: bool = False,
    takes_bucket: bool = False,
    may_be_empty: bool = False,
    **limits: Any,
) -> Any:
  """Declares a flag; its type is the annotation of the field.

  A tuple of strings is a list with commas.

  Args:
    default: Its value if it is not given; None: nothing.
    help_text: What it means, with its unit.
    is_needed: Whether it must be given.
    needs: Names of flags, with spaces between, of which one must be set.
    excludes: Names of flags of which none may be set beside it.
    is_repeated: Whether a tuple has an entry each time that the flag is given.
    takes_rest: Whether it stands for the arguments that are not flags.
    takes_bucket: Whether a folder may be a URL of a bucket.
    may_be_empty: Whether an empty text is a value; else it is a mistake, as of a variable
      that is not set.
    **limits: See `section.Limits`.
  """
  metadata = {
      "limits": config_lib.Limits(help_text, **limits),
      "is_needed": is_needed,
      "needs": needs.split(),
      "excludes": excludes.split(),
      "is_repeated": is_repeated,
      "takes_rest": takes_rest,
      "takes_bucket": takes_bucket,
      "may_be_empty": may_be_empty or default == "",
  }
  return dataclasses.field(default=default, metadata=metadata)


def part(kind: type[Any]) -> Any:
  """Declares the flags of another dataclass, whose value is the field's; parts come last."""
  return dataclasses.field(default_factory=kind)


def define(kind: type[Any]) -> None:
  """Defines the flags of a dataclass for absl, as texts that `read` parses."""
  for field, hint in _walk(kind):
    if hint is config_lib.Config:
      config_flag.define(field.name, str(field.default))
    elif not field.metadata["takes_rest"]:
      flags.DEFINE_multi_string(_name(field), None, "", boolean=hint is bool)


def read(kind: type[_T], rest: Sequence[str]) -> _T:
  """Returns the flags as given, and `rest`, the other arguments.

  Raises `ValueError` if one is missing or not allowed, or if some need or
  exclude others.
  """
  found = [*_walk(kind)]
  values = {_name(field): _read(field, hint, rest) for field, hint in found}
  if rest and not any(field.metadata["takes_rest"] for field, _ in found):
    raise ValueError(f"Unexpected arguments: {' '.join(rest)}")
  is_set = {name for name, value in values.items() if value not in (None, (), False)}
  for field, _ in found:
    name, how = _name(field), field.metadata
    if how["is_needed"] and name not in is_set:
      raise ValueError(f"The flag --{name} is needed.")
    if is_given(name) and values[name] in ("", ()) and not how["may_be_empty"]:
      raise ValueError(f"--{name} must have a value, got ''.")
    how["limits"].check(f"--{name}", values[name], values.__getitem__)
    if name not in is_set:
      continue
    if name in _FOLDERS:
      label, places = (name, rest) if how["takes_rest"] else (f"--{name}", [values[name]])
      if how["takes_bucket"]:
        places = [*map(base.find_place, places)]
        values[name] = tuple(places) if how["takes_rest"] else places[0]
      for place in places:
        base.refuse_url(label, place, takes_bucket=how["takes_bucket"])
    if others := sorted(is_set.intersection(how["excludes"])):
      raise ValueError(f"Give one of --{' and --'.join([name, *others])}, not both.")
    if (needs := how["needs"]) and is_set.isdisjoint(needs):
      refuse([name], f"without --{' or --'.join(needs)}")
  built: _T = _build(kind, values)
  return built


def _read(field: dataclasses.Field[Any], hint: Any, rest: Sequence[str]) -> Any:
  name = _name(field)
  if field.metadata["takes_rest"]:
    return tuple(rest)
  given: Any = flags.FLAGS[name].value
  if given is None:
    return field.default
  if hint is config_lib.Config:
    return given
  if field.metadata["is_repeated"]:
    return tuple(given)
  if typing.get_origin(hint) is tuple:
    try:
      return tuple(entry.strip() for row in csv.reader(given[-1:]) for entry in row)
    except csv.Error:
      raise ValueError(f"--{name} must be one line, got {given[-1]!r}.") from None
  return config_flag.parse_text(given[-1], hint, f"--{name}")


def is_given(name: str) -> bool:
  """Returns whether a flag is on the command line."""
  return name in flags.FLAGS and bool(flags.FLAGS[name].present)


def refuse(names: Iterable[str], when: str) -> None:
  """Raises `ValueError` if one of these flags is given: it has no effect `when`."""
  refuse_texts([f"--{name}" for name in names if is_given(name)], when)


def refuse_texts(texts: Sequence[str], when: str) -> None:
  """Raises `ValueError` if there are `texts`, flags that have no effect `when`."""
  if texts:
    *others, last = dict.fromkeys(texts)
    subject = f"{', '.join(others)} and {last} have" if others else f"{last} has"
    raise ValueError(f"{subject} no effect {when}.")


def refuse_keys(keys: Iterable[str], when: str) -> None:
  """Raises `ValueError` if a key in or below `keys` is set: it has no effect `when`."""
  keys = [*keys]
  below = lambda given: any(f"{given}.".startswith(f"{key}.") for key in keys)
  given = config_flag.given().values
  refuse_texts([f"--config.{key}" for key in given if below(key)], when)


def to_argv(given: Any, *names: str) -> list[str]:
  """Returns arguments that set flags of a child process as these are: `names`, or all.

  Of the config, its name and what the command line overrides. Flags with their
  default are left out.
  """
  argv = []
  for field in dataclasses.fields(given):
    name, value = _name(field), getattr(given, field.name)
    if not field.metadata:
      argv += to_argv(value, *names)
    elif names and name not in names:
      continue
    elif isinstance(value, config_lib.Config):
      argv += config_flag.given().arguments
    elif value != field.default:
      argv.append(f"--{name}={','.join(map(str, value)) if isinstance(value, tuple) else value}")
  return argv


def render(kind: type[Any], heading: str = "flags") -> str:
  """Returns the flags as lines of help, those of each part apart."""
  lines, hints = [f"{heading}:"], typing.get_type_hints(kind)
  for field in dataclasses.fields(kind):
    hint = config_lib.without_none(hints[field.name])
    if not field.metadata:
      lines += ["", render(hint, (hint.__doc__ or "").splitlines()[0].rstrip("."))]
      continue
    name, default, how = _name(field), field.default, field.metadata
    shown = name.upper() if how["takes_rest"] else f"--{'[no]' * (hint is bool)}{name}"
    text = f"  {shown}: {how['limits'].help}"
    if choices := how["limits"].choices:
      text += f" Of {', '.join(choices)}."
    if how["is_needed"]:
      text += " (needed)"
    elif default not in (None, (), False, ""):
      shown = ",".join(map(str, default)) if isinstance(default, tuple) else repr(default)
      text += f" (default: {shown})"
    lines += textwrap.wrap(text, 80, subsequent_indent="    ", break_on_hyphens=False)
  return "\n".join(lines)


def _name(field: dataclasses.Field[Any]) -> str:
  return field.name.rstrip("_")


def _walk(kind: type[Any]) -> Iterator[tuple[dataclasses.Field[Any], Any]]:
  """Yields each flag and its type without None; a part has no metadata."""
  hints = typing.get_type_hints(kind)
  for field in dataclasses.fields(kind):
    if field.metadata:
      yield field, config_lib.without_none(hints[field.name])
    else:
      yield from _walk(hints[field.name])


def _build(kind: type[Any], values: Mapping[str, Any]) -> Any:
  hints = typing.get_type_hints(kind)
  return kind(
      **{
          f.name: values[_name(f)] if f.metadata else _build(hints[f.name], values)
          for f in dataclasses.fields(kind)
      }
  )
