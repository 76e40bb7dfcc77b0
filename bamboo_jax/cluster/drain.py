"""Brings transfers between live nodes to an end when a step is interrupted.

A transfer takes both ends, and a device runs its transfers in the order in
which they were begun. So a node that has begun one waits until the other end
has begun it too; if that has been interrupted, it has to follow, with nothing
to say. Who follows where, and in which order, is decided here from what all
live nodes have begun since they were last level.
"""

from collections.abc import Iterable, Mapping
import dataclasses
from typing import Any

# The n-th transfer on a channel.
_Entry = tuple[str, int]


@dataclasses.dataclass(frozen=True)
class Begun:
  """The transfers that a node has begun.

  Attributes:
    since: When all ends were level, as (view, step); comparable.
    channels: The channel of each transfer, in order; see `make_channel`.
    era: The era that the node is in, see `eras`.
  """

  since: tuple[int, int]
  channels: tuple[str, ...]
  era: int = 0

  @classmethod
  def from_json(cls, content: Mapping[str, Any]) -> "Begun":
    """Returns what `dataclasses.asdict` was called on."""
    since, channels = tuple(content["since"]), tuple(content["channels"])
    return cls(since, channels, content["era"])


def make_channel(name: str, nodes: Iterable[int]) -> str:
  """Returns the name of a channel between `nodes`."""
  return f"{name}@{','.join(map(str, nodes))}"


def ends_of(channel: str) -> tuple[int, ...]:
  """Returns the nodes of a channel."""
  return tuple(map(int, channel.rpartition("@")[2].split(",")))


def find_era(begun: Mapping[int, Begun]) -> int:
  """Returns the era that all who were level last are in.

  Whoever was level longer ago is in it, has begun nothing since that era began,
  or has just come.

  Args:
    begun: By live node.
  """
  level = max(b.since for b in begun.values())
  return max(b.era for b in begun.values() if b.since == level)


def find_missing(begun: Mapping[int, Begun]) -> dict[int, tuple[str, ...]]:
  """Returns the transfers in which each node has to follow, in order.

  The rows of all nodes are projections of one order, so there is an order that
  agrees with what every node has begun and with what it follows in afterwards;
  nodes that keep to one never wait for each other in a circle.

  Args:
    begun: By live node. Of a node that was level longer ago than another all
      transfers have ended, as the other knows. Channels with a dead end do not
      matter.

  Returns:
    For each node the channels on which it has to begin a transfer.
  """
  level = max(b.since for b in begun.values())
  rows = {
      node: _number(b.channels, begun) if b.since == level else []
      for node, b in begun.items()
  }
  entries = {entry for row in rows.values() for entry in row}
  before = {entry: set() for entry in entries}
  missing = {}
  for node, row in rows.items():
    for first, second in zip(row, row[1:], strict=False):
      before[second].add(first)
    own = {e for e in entries if node in ends_of(e[0])}
    missing[node] = own - set(row)
    for entry in missing[node]:
      before[entry].update(row[-1:])
  order = _sort(before)
  return {
      node: tuple(e[0] for e in order if e in missing[node]) for node in rows
  }


def _number(channels: Iterable[str], live: Mapping[int, Begun]) -> list[_Entry]:
  """Returns each channel of live ends with how often it came before."""
  counts: dict[str, int] = {}
  numbered = []
  for channel in channels:
    if all(node in live for node in ends_of(channel)):
      count = counts.get(channel, 0)
      numbered.append((channel, count))
      counts[channel] = count + 1
  return numbered


def _sort(before: Mapping[_Entry, set[_Entry]]) -> list[_Entry]:
  """Returns an order of all entries, the same on every node."""
  order, placed = [], set()
  left = dict(before)
  while left:
    free = sorted(e for e in left if left[e] <= placed)
    assert free, f"no common order: {left}"
    for entry in free:
      del left[entry]
    order += free
    placed.update(free)
  return order
