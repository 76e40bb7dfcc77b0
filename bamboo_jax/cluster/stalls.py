"""Finds the worker that hangs when all others wait for it.

A worker waits for the nodes of its open receives; in a collective transfer that
it has begun, for those that have not; and after a post for those that have not
posted. The worker that waits for none is to blame. Pure.
"""

from collections.abc import Mapping
import dataclasses

from bamboo_jax.schedule import channel as channel_lib


@dataclasses.dataclass(frozen=True)
class Stall:
  """The report of a worker that makes no progress, perhaps on purpose.

  `posted` has view and key of its posts since it adopted its view, in order.
  """

  is_waiting: bool
  view: int
  begun: channel_lib.Begun
  posted: tuple[tuple[int, str], ...]


def find_culprit(stalls: Mapping[int, Stall | None]) -> int | None:
  """Returns the member that keeps all others from going on, None if unknown.

  If there are several, as the ends of a connection that has broken in silence,
  it is the last of them; the next one comes later.
  """
  if not all(stalls.values()):
    return None  # Somebody is at work, and the others wait for that.
  blamed = [
      node
      for node, stall in stalls.items()
      if not stall.is_waiting
      and not any(
          is_waiting_for(stall, stalls[other], other)
          for other in stalls.keys() - {node}
      )
  ]
  return max(blamed, default=None)


def is_waiting_for(waiter: Stall, other: Stall, number: int) -> bool:
  """Whether `waiter` cannot go on before `other`, of this number, has."""
  if waiter.posted:
    view, key = waiter.posted[-1]
    comes = not other.view and other.posted and other.posted[0][0] > view
    if other.view <= view and not comes and (view, key) not in other.posted:
      return True
  if number in waiter.begun.waits_for:
    return True
  if waiter.begun.since < other.begun.since:
    return False  # The other knows that all of it has ended.
  behind = waiter.begun.since > other.begun.since
  theirs = () if behind else other.begun.channels
  return any(
      waiter.begun.channels.count(channel) > theirs.count(channel)
      for channel in set(waiter.begun.channels)
      if number in channel.nodes
  )
