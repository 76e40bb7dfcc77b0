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
import re
import sys
import textwrap
import typing
from typing import Any, NamedTuple, TypeVar

from absl import flags

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


@dataclasses.dataclass(frozen=True)
class _Use:
  """How a flag is given, beside the `section.Limits` of its value."""

  is_needed: bool = False
  needs: tuple[str, ...] = ()
  excludes: tuple[str, ...] = ()
  define: Callable[[str, Any, str], Any] | None = None
  takes_rest: bool = False
  is_repeated: bool = False


def flag(
    default: Any,
    help_text: str,
    *,
    is_needed: bool = False,
    needs: str = "",
    excludes: str = "",
    define: Callable[[str, Any, str], Any] | None = None,
    is_repeated: bool = False,
    **limits: Any,
) -> Any:
  """Declares a flag; its type is the annotation of the field.

  A tuple of strings or numbers is a list with commas.

  Args:
    default: Its value if it is not given; None: nothing.
    help_text: What it means, with its unit.
    is_needed: Whether it must be given.
    needs: Names of flags, with spaces between, of which one must be set.
    excludes: Names of flags of which none may be set beside it.
    define: Defines the flag from name, default and help, in place of the type.
    is_repeated: Whether it may be given several times, once for each text.
    **limits: See `section.Limits`.
  """
  use = _Use(
      is_needed,
      tuple(needs.split()),
      tuple(excludes.split()),
      define=define,
      is_repeated=is_repeated,
  )
  return dataclasses.field(
      default=default, metadata={section.LIMITS: section.Limits(help_text, **limits), "use": use}
  )


def arguments(help_text: str) -> Any:
  """Declares the arguments that are not flags: a tuple of strings."""
  use = _Use(takes_rest=True)
  return dataclasses.field(
      default=(), metadata={section.LIMITS: section.Limits(help_text), "use": use}
  )


def part(kind: type[Any]) -> Any:
  """Declares the flags of another dataclass, whose value is the field's."""
  return dataclasses.field(default_factory=kind)


class _Leaf(NamedTuple):
  """A flag of a dataclass, or of one of its parts."""

  name: str
  default: Any
  kind: Any  # Its type, without None.
  limits: section.Limits
  use: _Use
  group: str  # Heading of the part that it belongs to.


def define(kind: type[Any]) -> None:
  """Defines the flags of a dataclass for absl."""
  for leaf in _walk(kind):
    if leaf.use.define is not None:
      leaf.use.define(leaf.name, leaf.default, leaf.limits.help)
    elif leaf.use.is_repeated:
      flags.DEFINE_multi_string(leaf.name, [*leaf.default], leaf.limits.help)
    elif typing.get_origin(leaf.kind) is tuple:
      flags.DEFINE_list(leaf.name, [*map(str, leaf.default)], leaf.limits.help)
    elif not leaf.use.takes_rest:
      _DEFINE[leaf.kind](leaf.name, leaf.default, leaf.limits.help)


def read(kind: type[_T], rest: Sequence[str]) -> _T:
  """Returns the flags as given, and `rest`, the other arguments.

  Raises `ValueError` if one is missing or not allowed, or if some need or
  exclude others.
  """
  leaves = {leaf.name: leaf for leaf in _walk(kind)}
  values = {leaf.name: _read(leaf, rest) for leaf in leaves.values()}
  if rest and not any(leaf.use.takes_rest for leaf in leaves.values()):
    raise ValueError(f"Unexpected arguments: {' '.join(rest)}")
  is_set = {name for name, value in values.items() if value not in (None, (), False)}
  without: dict[tuple[str, ...], list[str]] = {}
  for name, leaf in leaves.items():
    if leaf.use.is_needed and name not in is_set:
      raise ValueError(f"The flag --{name} is needed.")
    leaf.limits.check(f"--{name}", values[name], values.__getitem__)
    if excluded := sorted(is_set.intersection(leaf.use.excludes)) * (name in is_set):
      raise ValueError(f"Give one of --{' and --'.join([name, *excluded])}, not both.")
    if leaf.use.needs and is_set.isdisjoint(leaf.use.needs):
      without.setdefault(leaf.use.needs, []).append(name)
  for needs, names in without.items():
    refuse(names, f"without --{' or --'.join(needs)}")
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


def given_keys() -> list[str]:
  """Returns the keys of the config that the command line sets, as "cost.date"."""
  flag: Any = flags.FLAGS[CONFIG]
  return [*flag.override_values]


def refuse_keys(keys: Iterable[str], when: str) -> None:
  """Raises `ValueError` if a key in or below `keys` is set: it has no effect `when`."""
  keys = [*keys]
  below = lambda given: any(f"{given}.".startswith(f"{key}.") for key in keys)
  refuse_texts([f"--{CONFIG}.{given}" for given in given_keys() if below(given)], when)


def to_argv(given: Any, *names: str) -> list[str]:
  """Returns arguments that set flags of a child process as these are.

  Of the config, its name and what the command line overrides. Flags with their
  default are left out.
  """
  argv = []
  for leaf in _walk(type(given)):
    if leaf.name == CONFIG and CONFIG in names:
      argv += _config_argv()
    elif leaf.name in names and (value := _find(given, leaf.name)) != leaf.default:
      text = ",".join(map(str, value)) if isinstance(value, tuple) else value
      argv.append(f"--{leaf.name}={text}")
  return argv


def render(kind: type[Any]) -> str:
  """Returns the flags as lines of help, those of each part apart."""
  lines = ["flags:"]
  for name, default, plain, limits, use, group in _walk(kind):
    if group and group not in lines:
      lines += ["", group]
    shown = name.upper() if use.takes_rest else f"--{'[no]' * (plain is bool)}{name}"
    text = f"  {shown}: {limits.help}"
    if limits.choices:
      text += f" Of {', '.join(limits.choices)}."
    if use.is_needed:
      text += " (needed)"
    elif default not in (None, (), False):
      text += (
          f" (default: {','.join(map(str, default)) if isinstance(default, tuple) else default})"
      )
    lines += textwrap.wrap(text, 80, subsequent_indent="    ", break_on_hyphens=False)
  return "\n".join(lines)


def _walk(kind: type[Any], group: str = "") -> Iterator[_Leaf]:
  """Yields the flags of a dataclass, then those of its parts."""
  hints, parts = typing.get_type_hints(kind), []
  for field in dataclasses.fields(kind):
    if "use" in field.metadata:
      plain = section.without_none(hints[field.name])
      limits, use = field.metadata[section.LIMITS], field.metadata["use"]
      yield _Leaf(field.name.rstrip("_"), field.default, plain, limits, use, group)
    else:
      parts.append(hints[field.name])
  for one in parts:
    yield from _walk(one, f"{(one.__doc__ or '').splitlines()[0].rstrip('.')}:")


def _read(leaf: _Leaf, rest: Sequence[str]) -> Any:
  """Returns the value of a flag; lists as tuples of their type."""
  if leaf.use.takes_rest:
    return tuple(rest)
  value = flags.FLAGS[leaf.name].value
  if isinstance(value, list):
    kind = typing.get_args(leaf.kind)[0]
    if kind is int and (wrong := [text for text in value if not text.isdigit()]):
      raise ValueError(f"--{leaf.name} must be whole numbers, got {wrong[0]!r}.")
    return tuple(map(kind, value))
  return value


def _build(kind: type[Any], values: Mapping[str, Any]) -> Any:
  hints, found = typing.get_type_hints(kind), {}
  for field in dataclasses.fields(kind):
    is_flag = "use" in field.metadata
    found[field.name] = (
        values[field.name.rstrip("_")] if is_flag else _build(hints[field.name], values)
    )
  return kind(**found)


def _find(given: Any, name: str) -> Any:
  """Returns the value of a flag, which may be one of a part."""
  if hasattr(given, name):
    return getattr(given, name)
  parts = [getattr(given, f.name) for f in dataclasses.fields(given) if "use" not in f.metadata]
  return next(_find(one, name) for one in parts if hasattr(one, name))


def _config_argv() -> list[str]:
  """Returns the name of the config and its overrides, as they were given."""
  argv, found = sys.argv[1:], [f"--{CONFIG}={given_config()}"]
  for argument, following in zip(argv, [*argv[1:], ""], strict=True):
    if match := re.match(rf"--?(?:no)?({CONFIG}\.[^=]*)(=?)", argument):
      found.append(argument)
      if not match[2] and not flags.FLAGS[match[1]].boolean:
        found.append(following)
  return found
