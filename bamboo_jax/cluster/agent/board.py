"""Where nodes put values for each other, and read those of all members.

A value is posted once, by a node, under a key, for one view. Nobody collects:
every node sends what it posts to all others, so nothing is lost with a leader.
"""

from collections.abc import Callable, Collection
from typing import Any


class Board:
  """The values of the current view, and of those that are not known yet.

  Args:
    find_members: Returns the numbers of the members of a view, nothing if it
      is not known.
    deliver: Called with view, key, and the values of all its members, by
      number, once they are there; they are then removed.
  """

  def __init__(
      self,
      *,
      find_members: Callable[[int], Collection[int]],
      deliver: Callable[[int, str, dict[int, Any]], None],
  ) -> None:
    self._find_members = find_members
    self._deliver = deliver
    self._view = 0
    self._values: dict[tuple[int, str], dict[int, Any]] = {}

  def post(self, view: int, key: str, node: int, value: Any) -> None:
    """Puts a value on the board; one of an older view is dropped."""
    if view >= self._view:
      self._values.setdefault((view, key), {})[node] = value
      self._look(view, key)

  def note_view(self, view: int) -> None:
    """Notes that a view has become known."""
    for key in [key for number, key in self._values if number == view]:
      self._look(view, key)

  def move_to(self, view: int) -> None:
    """Drops what belongs to older views."""
    self._view = view
    for entry in [e for e in self._values if e[0] < view]:
      del self._values[entry]

  def _look(self, view: int, key: str) -> None:
    members, values = self._find_members(view), self._values[view, key]
    if members and values.keys() >= set(members):
      del self._values[view, key]
      self._deliver(view, key, {node: values[node] for node in sorted(members)})
