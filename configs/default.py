"""GPT-2 small on 8 nodes: 2 pipelines of 4 stages.

Every field is here; other configs start from this one. `bamboo_jax/config` has
the types, the defaults and what they mean, and docs/reference/options.md a
table of them.
"""

from typing import Any

import ml_collections
from ml_collections import config_dict

from bamboo_jax import config as config_lib


def get_config() -> ml_collections.ConfigDict:
  """Returns the default configuration."""
  return _make(config_lib.Config())


def _make(section: Any) -> ml_collections.ConfigDict:
  """Returns the options of a section; those that may be None are references."""
  made = ml_collections.ConfigDict()
  for name, kind in config_lib.kinds_of(type(section)).items():
    value, plain = getattr(section, name), config_lib.without_none(kind)
    if isinstance(value, config_lib.Section):
      value = _make(value)
    elif plain is not kind:
      value = config_dict.FieldReference(value, field_type=plain)
    elif isinstance(value, dict):
      empty = config_dict.placeholder(int)  # A length in steps.
      value = {k: empty if v is None else v for k, v in value.items()}
      value = ml_collections.ConfigDict(value)
    made[name] = value
  return made
