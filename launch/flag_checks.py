"""Checks that reject flags without effect, or without flags that they need."""

from collections.abc import Collection, Sequence
import re
from typing import Any

from absl import flags


def check_one_of(*holders: flags.FlagHolder[Any]) -> None:
  """Raises `ValueError` if more than one of these flags is set."""
  names = [f"--{holder.name}" for holder in holders if holder.value]
  if len(names) > 1:
    raise ValueError(f"Give one of {' and '.join(names)}, not both.")


def check_needs(holders: Sequence[flags.FlagHolder[Any]], *needed: flags.FlagHolder[Any]) -> None:
  """Raises `ValueError` if one of `holders` is given and no `needed` is set."""
  if not any(holder.value not in (None, [], False) for holder in needed):
    names = " or ".join(f"--{holder.name}" for holder in needed)
    check_unused(holders, f"without {names}")


def check_unused(holders: Sequence[flags.FlagHolder[Any]], when: str) -> None:
  """Raises `ValueError` if one of `holders` is given.

  `when` is the end of the message: "... has no effect `when`".
  """
  refuse([f"--{h.name}" for h in holders if h.present], when)


def refuse(names: Sequence[str], when: str) -> None:
  """Raises `ValueError` if there are `names`; see `check_unused` for `when`."""
  if names:
    *rest, last = dict.fromkeys(names)
    subject = f"{', '.join(rest)} and {last} have" if rest else f"{last} has"
    raise ValueError(f"{subject} no effect {when}.")


def given_keys(argv: Sequence[str]) -> list[str]:
  """Returns the keys of the config that arguments set, such as "cost.date"."""
  matches = (re.match(r"--?(?:no)?config\.([^=]+)", text) for text in argv)
  return [match[1] for match in matches if match]


def refuse_keys(argv: Sequence[str], keys: Collection[str], when: str) -> None:
  """Raises `ValueError` if a key in or below `keys` is set by `argv`.

  See `check_unused` for `when`.
  """
  found = [
      f"--config.{given}"
      for given in given_keys(argv)
      if any(given == key or given.startswith(f"{key}.") for key in keys)
  ]
  refuse(found, when)
