"""Where nodes put values for each other, and read those of all members.

A value is posted once, by a node, under a key, for one view. Nobody collects:
every node sends what it posts to all others, so nothing is lost with a leader.
"""

from collections.abc import Collection
from typing import Any


class Board:
  """The values of the current view, and of those that are not known yet."""

  def __init__(self) -> None:
    self._view = 0
    self._values: dict[tuple[int, str], dict[int, Any]] = {}

  def post(self, view: int, key: str, node: int, value: Any) -> None:
    """Puts a value on the board; one of an older view is dropped."""
    if view >= self._view:
      self._values.setdefault((view, key), {})[node] = value

  def take(
      self, view: int, key: str, nodes: Collection[int]
  ) -> dict[int, Any] | None:
    """Removes and returns the values of `nodes`; None if one is missing."""
    values = self._values.get((view, key), {})
    if not values.keys() >= set(nodes):
      return None
    del self._values[view, key]
    return {node: values[node] for node in sorted(nodes)}

  def keys(self, view: int) -> list[str]:
    """Returns the keys under which there is something for `view`."""
    return [key for number, key in self._values if number == view]

  def move_to(self, view: int) -> None:
    """Drops what belongs to older views."""
    self._view = view
    for entry in [e for e in self._values if e[0] < view]:
      del self._values[entry]
