"""Finds the hanging worker when all others wait for it.

A worker waits for the nodes of its open receives; in a segment of a program, for
nodes that have not started it; after a post, for members that have not posted.
The worker that waits for no other is the culprit. Pure.
"""

from collections.abc import Mapping
import dataclasses

from bamboo_jax import base
from bamboo_jax.schedule import channel as channel_lib


@dataclasses.dataclass(frozen=True)
class Stall:
  """The report of a worker without progress, perhaps deliberately.

  `posted` has view and key of its posts since it adopted its view, in order.
  """

  is_waiting: bool
  view: base.ViewId
  begun: channel_lib.Begun
  posted: tuple[tuple[base.ViewId, str], ...]


def find_culprit(stalls: Mapping[base.NodeId, Stall | None]) -> base.NodeId | None:
  """Returns the member that blocks all others; None if unknown.

  Of several candidates, such as both ends of a broken connection, it is the
  last by number; the other may follow later.
  """
  known = {node: stall for node, stall in stalls.items() if stall}
  if len(known) < len(stalls):
    return None  # A member makes progress; the others wait for it.
  blamed = [
      node
      for node, stall in known.items()
      if not stall.is_waiting
      and not any(is_waiting_for(stall, known[other], other) for other in known.keys() - {node})
  ]
  return max(blamed, default=None)


def is_waiting_for(waiter: Stall, other: Stall, number: base.NodeId) -> bool:
  """Whether `waiter` needs `other`, of this number, to continue."""
  if waiter.posted:
    view, key = waiter.posted[-1]
    comes = not other.view and other.posted and other.posted[0][0] > view
    if other.view <= view and not comes and (view, key) not in other.posted:
      return True
  if number in waiter.begun.waits_for and waiter.view >= other.view:
    return True  # In an older view no value comes any more.
  ring, theirs = waiter.begun.ring, other.begun
  is_level = theirs.ring == ring and theirs.num_segments >= waiter.begun.num_segments
  return number in ring and not is_level
