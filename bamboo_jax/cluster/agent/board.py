"""Values that nodes post for all members of a view.

A value is posted once, under a key, for one view. Every node sends its posts to
all others, so nothing is lost with a leader.
"""

from collections.abc import Set
from typing import Any

from bamboo_jax.cluster import messages


class Board:
  """The values of the current view, and of views not known yet."""

  def __init__(self) -> None:
    self._view = 0
    self._values: dict[tuple[int, str], dict[int, Any]] = {}

  def __len__(self) -> int:
    return len(self._values)

  def post(self, node: int, post: messages.Post) -> None:
    """Puts a value on the board; one of an older view is dropped."""
    if post.view >= self._view:
      values = self._values.setdefault((post.view, post.key), {})
      values[node] = post.value

  def take(self, view: int, members: Set[int]) -> list[messages.Gathered]:
    """Takes off the keys that all `members` of a view have posted, in order."""
    complete = [
        key
        for (number, key), values in self._values.items()
        if number == view and members and values.keys() >= members
    ]
    taken = []
    for key in complete:
      values = self._values.pop((view, key))
      taken.append(
          messages.Gathered(view, key, {n: values[n] for n in sorted(members)})
      )
    return taken

  def move_to(self, view: int) -> None:
    """Drops the values of older views."""
    self._view = view
    for entry in [e for e in self._values if e[0] < view]:
      del self._values[entry]
