"""Reads `config.metrics.profile_steps`, the steps to trace for XProf."""

import re


def parse(text: str | None) -> range:
  """Returns the steps of "3:6", first and last, from 1; empty for None.

  Raises `ValueError` for anything else.
  """
  if text is None:
    return range(0)
  found = re.fullmatch(r"(\d+):(\d+)", text)
  first, last = map(int, found.groups()) if found else (0, 0)
  if not 1 <= first <= last:
    raise ValueError(
        "config.metrics.profile_steps must be the first and the last step, "
        f"such as 3:6, got {text!r}."
    )
  return range(first, last + 1)
