"""Profiles as JSON text: the fields of `cost_model.Profile`, and a version.

Reading is strict, because a profile that is quietly wrong makes a plan that is
quietly slow: an error names any field too many, too few or of a wrong type.
"""

import json

from bamboo_jax.base import json as json_lib
from bamboo_jax.plan import cost_model

_VERSION = 1


def to_json(profile: cost_model.Profile) -> str:
  """Returns `profile` as text that `from_json` reads back to an equal value."""
  fields = {"version": _VERSION, **json_lib.to_plain(profile)}
  return json.dumps(fields, indent=1, allow_nan=False) + "\n"


def from_json(text: str, *, source: str = "profile") -> cost_model.Profile:
  """Returns the profile that `to_json` wrote; messages name its `source`.

  Raises `ValueError`: `text` is not a profile; names the field that is wrong.
  """
  try:
    fields = json.loads(text)
  except ValueError as error:
    raise ValueError(f"{source} is not JSON: {error}.") from error
  if not isinstance(fields, dict):
    raise ValueError(f"{source} must hold a JSON object, got {fields!r:.40}.")
  version = fields.pop("version", None)
  if version != _VERSION:
    raise ValueError(
        f"{source}: version must be {_VERSION}, got {version!r}; measure a new "
        "profile."
    )
  return json_lib.from_plain(cost_model.Profile, fields, where=source)
