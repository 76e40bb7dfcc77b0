"""Messages for misspelt names, and options checked against the function that takes them."""

from collections.abc import Callable, Iterable, Mapping
import difflib
import inspect
import numbers
import types
import typing
from typing import Any

_ABSTRACT = {
    int: numbers.Integral,
    float: numbers.Real,
    str: str,
    bool: bool,
    types.NoneType: types.NoneType,
}
# Sections of a config with any keys; the function that takes them checks them.
OPTIONS = ("options", "schedule_options")
_UNIONS = (None, types.UnionType, typing.Union)


def suggest(name: str, allowed: Iterable[str], *, what: str) -> str:
  """Returns a message: unknown `what`, the closest names, the allowed ones."""
  allowed = sorted(allowed)
  hint = hint_at(name, allowed)
  return f"Unknown {what} {name!r}{hint} Allowed: {', '.join(allowed) or 'none'}."


def hint_at(name: str, allowed: Iterable[str]) -> str:
  """Returns "; did you mean ...?" with the closest names, or a full stop."""
  lower = {a.lower(): a for a in sorted(allowed, reverse=True)}
  close = [
      lower[match] for match in difflib.get_close_matches(name.lower(), lower, n=3, cutoff=0.5)
  ]
  hint = " or ".join(repr(c) for c in close)
  return f"; did you mean {hint}?" if hint else "."


def check_options(
    function: Callable[..., Any],
    options: Mapping[str, Any],
    *,
    what: str,
    others: Iterable[str] = (),
) -> None:
  """Raises `ValueError` unless `options` can be arguments of `function`.

  Names must be known and complete, and values of the annotated types, see
  `fits`. `function` may be a class and is not called; `what` names it in
  messages, such as "model 'gpt2'", and `others` are options that are not for it.
  """
  parameters = inspect.signature(function).parameters
  kinds = {p.kind for p in parameters.values()}
  for name, value in options.items():
    if name in parameters:
      annotation = parameters[name].annotation
      if not fits(value, annotation):
        raise ValueError(
            f"Option {name!r} of {what} must be "
            f"{inspect.formatannotation(annotation)}, got {value!r}."
        )
    elif inspect.Parameter.VAR_KEYWORD not in kinds:
      raise ValueError(suggest(name, [*parameters, *others], what=f"option of {what}"))
  for name, parameter in parameters.items():
    is_needed = parameter.default is parameter.empty and parameter.kind in (
        parameter.POSITIONAL_OR_KEYWORD,
        parameter.KEYWORD_ONLY,
    )
    if is_needed and name not in options:
      raise ValueError(f"The {what} needs the option {name!r}.")


def fits(value: Any, annotation: Any) -> bool:
  """Returns whether `value` is of the annotated type.

  Checked are int, float, str, bool, and unions of these and None; any value
  fits another annotation. An integer fits a float; a bool is not a number.
  """
  is_union = typing.get_origin(annotation) in _UNIONS
  kinds = is_union and typing.get_args(annotation) or (annotation,)
  if any(kind not in _ABSTRACT for kind in kinds):
    return True
  if isinstance(value, bool):
    return bool in kinds
  return isinstance(value, tuple(_ABSTRACT[kind] for kind in kinds))
