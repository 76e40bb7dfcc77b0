"""Profiles as JSON text.

The text holds the fields of `cost_model.Profile` under their own names, and the
version of the format. Reading is strict, because a profile that is quietly
wrong makes a plan that is quietly slow: a field too many, too few or of the
wrong type is an error that names it.
"""

from collections.abc import Mapping
import dataclasses
import json
from typing import Any

from bamboo_jax import base
from bamboo_jax.plan import cost_model

_VERSION = 1
_ENTRIES = {"layers": cost_model.LayerCost, "ties": cost_model.TieCost}


def to_json(profile: cost_model.Profile) -> str:
  """Returns `profile` as text that `from_json` reads back to an equal value."""
  fields = {"version": _VERSION, **dataclasses.asdict(profile)}
  return json.dumps(fields, indent=1, allow_nan=False) + "\n"


def from_json(text: str, *, source: str = "profile") -> cost_model.Profile:
  """Returns the profile that `to_json` wrote.

  Args:
    text: What the file contains.
    source: Name of the file, for messages.

  Raises:
    ValueError: `text` is not a profile; names the field that is wrong.
  """
  try:
    fields = json.loads(text)
  except ValueError as error:
    raise ValueError(f"{source} is not JSON: {error}.") from error
  if not isinstance(fields, dict):
    raise ValueError(f"{source} must hold a JSON object, got {_kind(fields)}.")
  version = fields.pop("version", None)
  if version != _VERSION:
    raise ValueError(
        f"{source}: version must be {_VERSION}, got {version!r}; measure a new "
        "profile."
    )
  for name, cls in _ENTRIES.items():
    if name in fields:
      fields[name] = _parse_entries(
          cls, fields[name], where=f"{source}: {name}"
      )
  return _build(cost_model.Profile, fields, where=source)


def _parse_entries(cls: type, entries: Any, *, where: str) -> tuple[Any, ...]:
  if not isinstance(entries, list):
    raise ValueError(f"{where} must be a list, got {_kind(entries)}.")
  return tuple(
      _build(cls, entry, where=f"{where}[{i}]")
      for i, entry in enumerate(entries)
  )


def _build(cls: type, fields: Any, *, where: str) -> Any:
  """Returns a `cls` made from `fields`; `where` is put before every message."""
  if not isinstance(fields, Mapping):
    raise ValueError(f"{where} must be an object, got {_kind(fields)}.")
  allowed = {field.name: field for field in dataclasses.fields(cls)}
  for name in fields:
    if name not in allowed:
      raise ValueError(f"{where}: {base.suggest(name, allowed, what='field')}")
  missing = [
      name
      for name, field in allowed.items()
      if name not in fields and field.default is dataclasses.MISSING
  ]
  if missing:
    raise ValueError(f"{where}: missing field {', '.join(missing)}.")
  try:
    return cls(**fields)
  except ValueError as error:
    raise ValueError(f"{where}: {error}") from error


def _kind(value: Any) -> str:
  return "nothing" if value is None else type(value).__name__
