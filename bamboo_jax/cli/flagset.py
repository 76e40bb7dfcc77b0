"""Flags of a command: a frozen dataclass, whose fields are made by `flag`.

  @dataclasses.dataclass(frozen=True)
  class TraceFlags:
    trace: str | None = flagset.flag(None, "File of events.")
    time_scale: float = flagset.flag(1.0, "Multiply all times.", above=0, needs="trace")

One declaration makes the flags of absl, the help and all checks, and `to_argv`
passes them to child processes. `part` includes the flags of another dataclass.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import dataclasses
import itertools
import re
import sys
import textwrap
import typing
from typing import Any, NamedTuple, TypeVar

from absl import flags

from bamboo_jax import base
from bamboo_jax.config import section

flags.disclaim_key_flags()
_DEFINE: Mapping[Any, Callable[..., Any]] = {
    bool: flags.DEFINE_bool,
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    str: flags.DEFINE_string,
}
CONFIG = "config"
_T = TypeVar("_T")
_OWN = "flag"  # In the metadata of a field.
_FOLDERS = ("out", "workdir", "workdirs")  # Flags of all commands.


class _Flag(NamedTuple):
  """What a flag may be and how it is given; `flag` has the words."""

  limits: section.Limits
  is_needed: bool = False
  needs: Sequence[str] = ()
  excludes: Sequence[str] = ()
  define: Callable[[str, Any, str], Any] | None = None
  takes_rest: bool = False
  takes_bucket: bool = False


def flag(
    default: Any,
    help_text: str,
    *,
    is_needed: bool = False,
    needs: str = "",
    excludes: str = "",
    define: Callable[[str, Any, str], Any] | None = None,
    takes_bucket: bool = False,
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
    define: Makes the flag of absl from its name, default and help text; by default
      the type of the field decides.
    takes_bucket: Whether a folder may be a URL of a bucket.
    **limits: See `section.Limits`.
  """
  own = _Flag(
      *(section.Limits(help_text, **limits), is_needed, needs.split(), excludes.split(), define),
      takes_bucket=takes_bucket,
  )
  return dataclasses.field(default=default, metadata={_OWN: own})


def arguments(help_text: str, *, takes_bucket: bool = False) -> Any:
  """Declares the arguments that are not flags: a tuple of strings."""
  own = _Flag(section.Limits(help_text), takes_rest=True, takes_bucket=takes_bucket)
  return dataclasses.field(default=(), metadata={_OWN: own})


def part(kind: type[Any]) -> Any:
  """Declares the flags of another dataclass, whose value is the field's."""
  return dataclasses.field(default_factory=kind)


def define(kind: type[Any]) -> None:
  """Defines the flags of a dataclass for absl."""
  for field, hint, own in _walk(kind):
    name, help_text = _name(field), own.limits.help
    default: Any = field.default
    if own.define is not None:
      own.define(name, default, help_text)
    elif typing.get_origin(hint) is tuple:
      flags.DEFINE_list(name, [*map(str, default)], help_text)
    elif not own.takes_rest:
      _DEFINE[hint](name, default, help_text)


def read(kind: type[_T], rest: Sequence[str]) -> _T:
  """Returns the flags as given, and `rest`, the other arguments.

  Raises `ValueError` if one is missing or not allowed, or if some need or
  exclude others.
  """
  found = [*_walk(kind)]
  values = {
      _name(field): tuple(rest) if own.takes_rest else _read(_name(field))
      for field, _, own in found
  }
  if rest and not any(own.takes_rest for _, _, own in found):
    raise ValueError(f"Unexpected arguments: {' '.join(rest)}")
  is_set = {name for name, value in values.items() if value not in (None, (), False)}
  for field, _, own in found:
    name = _name(field)
    if own.is_needed and name not in is_set:
      raise ValueError(f"The flag --{name} is needed.")
    own.limits.check(f"--{name}", values[name], values.__getitem__)
    if name in _FOLDERS and name in is_set:
      label, *places = (name, *rest) if own.takes_rest else (f"--{name}", str(values[name]))
      for place in places:
        base.refuse_url(label, place, takes_bucket=own.takes_bucket)
    if name in is_set and (others := sorted(is_set.intersection(own.excludes))):
      raise ValueError(f"Give one of --{' and --'.join([name, *others])}, not both.")
    if own.needs and is_set.isdisjoint(own.needs):
      refuse([name], f"without --{' or --'.join(own.needs)}")
  built: _T = _build(kind, values)
  return built


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


def given_config() -> str:
  """Returns the name or path of the config."""
  flag: Any = flags.FLAGS[CONFIG]
  return str(flag.config_filename)


def given_keys() -> dict[str, Any]:
  """Returns the values of `--config.KEY=VALUE` on the command line, by key."""
  flag: Any = flags.FLAGS[CONFIG]
  return dict(flag.override_values)


def refuse_keys(keys: Iterable[str], when: str) -> None:
  """Raises `ValueError` if a key in or below `keys` is set: it has no effect `when`."""
  keys = [*keys]
  below = lambda given: any(f"{given}.".startswith(f"{key}.") for key in keys)
  refuse_texts([f"--{CONFIG}.{given}" for given in given_keys() if below(given)], when)


def to_argv(given: Any, *names: str) -> list[str]:
  """Returns arguments that set flags of a child process as these are: `names`, or all.

  Of the config, its name and what the command line overrides. Flags with their
  default are left out.
  """
  argv = []
  for field in dataclasses.fields(given):
    name, value = _name(field), getattr(given, field.name)
    if _OWN not in field.metadata:
      argv += to_argv(value, *names)
    elif names and name not in names:
      continue
    elif name == CONFIG:
      argv += _config_argv()
    elif value != field.default:
      argv.append(f"--{name}={','.join(map(str, value)) if isinstance(value, tuple) else value}")
  return argv


def render(kind: type[Any], heading: str = "flags") -> str:
  """Returns the flags as lines of help, those of each part apart."""
  lines, hints = [f"{heading}:"], typing.get_type_hints(kind)
  for field, hint, own in _walk(kind, with_parts=False):
    name, default = _name(field), field.default
    shown = name.upper() if own.takes_rest else f"--{'[no]' * (hint is bool)}{name}"
    text = f"  {shown}: {own.limits.help}"
    if own.limits.choices:
      text += f" Of {', '.join(own.limits.choices)}."
    if own.is_needed:
      text += " (needed)"
    elif default not in (None, (), False, ""):
      text += (
          f" (default: {','.join(map(str, default)) if isinstance(default, tuple) else default!r})"
      )
    lines += textwrap.wrap(text, 80, subsequent_indent="    ", break_on_hyphens=False)
  for field in dataclasses.fields(kind):
    if _OWN not in field.metadata:
      inner = hints[field.name]
      lines += ["", render(inner, (inner.__doc__ or "").splitlines()[0].rstrip("."))]
  return "\n".join(lines)


def _name(field: dataclasses.Field[Any]) -> str:
  return field.name.rstrip("_")


def _walk(
    kind: type[Any], *, with_parts: bool = True
) -> Iterator[tuple[dataclasses.Field[Any], Any, _Flag]]:
  """Yields each flag, its type without None, and how it is given."""
  hints = typing.get_type_hints(kind)
  for field in dataclasses.fields(kind):
    hint = hints[field.name]
    if _OWN in field.metadata:
      yield field, section.without_none(hint), field.metadata[_OWN]
    elif with_parts:
      yield from _walk(hint)


def _read(name: str) -> Any:
  value = flags.FLAGS[name].value
  return tuple(value) if isinstance(value, list) else value


def _build(kind: type[Any], values: Mapping[str, Any]) -> Any:
  hints = typing.get_type_hints(kind)
  return kind(
      **{
          f.name: values[_name(f)] if _OWN in f.metadata else _build(hints[f.name], values)
          for f in dataclasses.fields(kind)
      }
  )


def _config_argv() -> list[str]:
  """Returns the name of the config and its overrides, as they were given."""
  argv, found = sys.argv[1:], [f"--{CONFIG}={given_config()}"]
  for argument, following in itertools.pairwise([*argv, ""]):
    if match := re.match(rf"--?(?:no)?({CONFIG}\.[^=]*)(=?)", argument):
      found.append(argument)
      if not match[2] and not flags.FLAGS[match[1]].boolean:
        found.append(following)
  return found
