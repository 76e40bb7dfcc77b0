"""The coordination services, as an agent sees them.

The worker reaches each through a `proxy` in the agent, so the death of one does
no harm until a new transfer has to be set up.
"""

from collections.abc import Collection
import dataclasses

from bamboo_jax.cluster import eras as eras_lib
from bamboo_jax.cluster.agent import events as events_lib
from bamboo_jax.cluster.store import registry as registry_lib

_Registry = registry_lib.Registry
_POLL_SECS = 0.1
_PATIENCE_SECS = 60.0  # How long a node that comes waits for a service.


class Services:
  """The eras that one agent knows; only `fixed` if none is in the store.

  Attributes:
    used: Number of the era that the worker is in, -1 before it is in one.
    era: The newest era, as it is in the store; None if none is known.
    seen: The same, as the worker has to see it: at the proxy's address.
  """

  def __init__(self, fixed: eras_lib.Era | None) -> None:
    self.used = -1
    self.era: eras_lib.Era | None = None
    self.seen: eras_lib.Era | None = None
    self._fixed = fixed
    self._alive: dict[int, bool] = {}  # Those that have a proxy.
    self._is_looking = False

  @property
  def newest(self) -> int:
    """Number of the newest era that is known, -1 if none is."""
    return -1 if self.era is None else self.era.number

  @property
  def least(self) -> int:
    """The first era in which the worker can be taken in."""
    return self.used + (not self.lives(self.used))

  def needed(self, current: int, members: Collection[int]) -> int | None:
    """Returns the least era for the next view, None if there is none yet.

    It is the newest whose service lives: some member may have lost another, and
    could not connect with anybody. All `members` have a slot there, by number.
    """
    for number in (self.newest, current):
      if self._alive.get(number) and all(
          self.takes(node, number) for node in members
      ):
        return max(current, number)
    return None

  def lives(self, number: int) -> bool:
    """Returns whether a service is not known to be dead."""
    return self._alive.get(number, True)

  def takes(self, node: int, number: int) -> bool:
    """Returns whether a node can move to an era, as far as is known."""
    if number > self.newest:
      return False
    if number == self.newest and eras_lib.slot_of(self.era, node) is None:
      return False
    return self.lives(number)

  def answers(self, number: int) -> events_lib.Flow:
    """Returns whether a service lives; tries to reach the newest.

    Of one that no worker here is connected to nobody says that it has died.
    """
    if number == self.newest:
      if not (yield events_lib.Reach(self.era.address)):
        self.lose(number)
    return self.lives(number)

  def misses(self, found: list[eras_lib.Era], node: int) -> bool:
    """Returns whether another era is needed than the newest.

    Its service has died, or a member, this `node`, has no slot, or what the
    store has `found` is another era of its number: it had gone back.
    """
    same = [era for era in found if era.number == self.newest]
    is_known = same in ([], [self.era])
    return bool(self.era) and not (is_known and self.takes(node, self.newest))

  def lose(self, number: int) -> None:
    """Records that a service has died."""
    if number in self._alive:
      self._alive[number] = False

  def use(self, number: int) -> list[int]:
    """Records which era the worker is in; returns those it left for good."""
    self.used = number
    old = [n for n in self._alive if n < number]
    for n in old:
      del self._alive[n]
    return old

  def look(self, found: list[eras_lib.Era] | None = None) -> events_lib.Flow:
    """Returns the new eras, with their proxies' addresses.

    Reads them from the store unless they are `found`.
    """
    if self._is_looking:
      yield events_lib.Sleep(_POLL_SECS)
      return []
    self._is_looking = True
    try:
      if found is None:
        found = yield events_lib.store(_Registry.eras)
      if not found and self._fixed is not None:
        found = [self._fixed]
      seen = []
      for era in [e for e in found if e.number > self.newest]:
        port = yield events_lib.OpenService(era)
        self._alive[era.number] = True
        self.era = era
        self.seen = dataclasses.replace(era, address=f"127.0.0.1:{port}")
        seen.append(self.seen)
      if self.newest > self.used and not self.lives(self.newest):
        self._alive[self.newest] = yield events_lib.Reach(self.era.address)
      return seen
    finally:
      self._is_looking = False

  def is_late(self, number: int, found: list[eras_lib.Era]) -> events_lib.Flow:
    """Returns whether a node comes too late for the newest era of those."""
    yield from self.look(found)
    return self.era is not None and eras_lib.is_late(self.era, number)

  def wait_slot(self, number: int) -> events_lib.Flow:
    """Waits for an era in which a node has a slot; asks for one if need be.

    Returns False if there can be none: it has come just when an era began.
    Raises `OSError` if the store or the service cannot be reached for long.
    """
    end_secs = (yield events_lib.Sleep(0.0)) + _PATIENCE_SECS
    while True:
      try:
        problem = yield from self._find_slot(number)
      except OSError as error:
        problem = str(error)
      if problem is None:
        return not eras_lib.is_late(self.era, number)
      if (yield events_lib.Sleep(_POLL_SECS)) >= end_secs:
        raise OSError(f"{problem}; start launch.coordinator again.")

  def _find_slot(self, number: int) -> events_lib.Flow:
    """Returns why a node has no slot yet; None if it has one, or never will."""
    yield from self.look()
    newest = self.era
    if newest is None:
      return "There is no coordination service"
    if eras_lib.is_late(newest, number):
      return None
    if eras_lib.slot_of(newest, number) is None:
      problem = f"Era {newest.number} has no slot for node {number}"
      if newest is self._fixed:
        raise ValueError(
            f"{problem}, dead nodes included, and without --etcd the "
            "coordinator starts no other."
        )
      yield events_lib.store(_Registry.want_era, newest.number + 1)
      return problem
    if not (yield events_lib.Reach(newest.address)):
      return f"The coordination service at {newest.address} is dead"
    return None
