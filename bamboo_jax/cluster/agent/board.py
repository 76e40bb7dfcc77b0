"""Values that nodes post for all members of a view.

A value is posted once, under a key, for one view. Every node sends its posts to
all others, so no leader can take them with it, and again after a reconnect. A
node posts a key after it has collected the ones before it, so its values older
than the last complete key are dropped.
"""

import collections
from collections.abc import Collection, Set
from typing import Any

from bamboo_jax import base
from bamboo_jax.cluster import messages

_NUM_TAKEN = 4  # Keys of a view kept to be sent again; two would do.


class Board:
  """The values of the current view, and of views not known yet."""

  def __init__(self) -> None:
    self._view = 0
    self._values: dict[tuple[base.ViewId, str], dict[base.NodeId, Any]] = {}
    self._own: dict[base.ViewId, list[messages.Post]] = {}
    self._taken: dict[base.ViewId, collections.deque[str]] = {}

  def __len__(self) -> int:
    return len(self._values) + sum(map(len, self._own.values()))

  def post(self, node: base.NodeId, post: messages.Post) -> None:
    """Puts a value on the board; one of an older view is dropped."""
    if post.view < self._view or post.key in self._taken.get(post.view, ()):
      return
    values = self._values.setdefault((post.view, post.key), {})
    values[node] = post.value

  def post_own(self, node: base.NodeId, post: messages.Post) -> bool:
    """Puts a value of this node on the board, and keeps it to send again.

    Of each key the first counts, as some nodes have received it; returns whether this is it.
    """
    own = self._own.setdefault(post.view, [])
    if is_first := post.key not in {p.key for p in own}:
      own.append(post)
      self.post(node, post)
    return is_first

  def own(self, view: base.ViewId) -> list[messages.Post]:
    """Returns the posts of this node for a view that others may need."""
    return self._own.get(view, [])

  @property
  def own_views(self) -> Collection[base.ViewId]:
    """The views for which others may need posts of this node."""
    return self._own.keys()

  def has_taken(self, key: str) -> bool:
    """Whether all members have posted a key, in the current view or a newer."""
    return any(key in taken for taken in self._taken.values())

  def take(self, view: base.ViewId, members: Set[base.NodeId]) -> list[messages.Gathered]:
    """Removes and returns the keys that all `members` have posted, in order."""
    taken = [
        messages.Gathered(view, key, {n: values[n] for n in sorted(members)})
        for (number, key), values in self._values.items()
        if number == view and members and len(values) >= len(members)
        if values.keys() >= members
    ]
    for key in (gathered.key for gathered in taken):
      del self._values[view, key]
      self._taken.setdefault(view, collections.deque(maxlen=_NUM_TAKEN)).append(key)
      if key != messages.BEGUN:  # All work in this view.
        _drop_older(self._own, view)
      own = self.own(view)
      if key in (keys := [post.key for post in own]):
        self._own[view] = own[keys.index(key) :]
    return taken

  def move_to(self, view: base.ViewId) -> None:
    """Drops the values of older views.

    The last posts of this node in them are kept until all members work in a newer one:
    if they were lost with a connection, others need them before they can change views.
    This node may have gone through several by then, as newcomers came and died.
    """
    if view <= self._view:
      return
    self._view = view
    _drop_older(self._taken, view)
    for entry in [e for e in self._values if e[0] < view]:
      del self._values[entry]


def _drop_older(table: dict[base.ViewId, Any], view: base.ViewId) -> None:
  for number in [n for n in table if n < view]:
    del table[number]
