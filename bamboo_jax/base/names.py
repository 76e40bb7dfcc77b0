"""Messages for misspelt names."""

from collections.abc import Iterable
import difflib


def suggest(name: str, allowed: Iterable[str], *, what: str) -> str:
  """Returns a message: unknown `what`, the closest names, the allowed ones."""
  allowed = sorted(allowed)
  hint = hint_at(name, allowed)
  return f"Unknown {what} {name!r}{hint} Allowed: {', '.join(allowed)}."


def hint_at(name: str, allowed: Iterable[str]) -> str:
  """Returns "; did you mean ...?" with the closest names, or a full stop."""
  lower = {a.lower(): a for a in sorted(allowed, reverse=True)}
  close = [
      lower[match] for match in difflib.get_close_matches(name.lower(), lower, n=3, cutoff=0.5)
  ]
  hint = " or ".join(repr(c) for c in close)
  return f"; did you mean {hint}?" if hint else "."
