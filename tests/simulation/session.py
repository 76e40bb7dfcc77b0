"""Sessions of JAX, as `train.members.switch_session` has them.

A worker needs the service of its session only to connect with others.
"""

import collections
from collections.abc import Callable, Mapping
import itertools
from typing import Any

from bamboo_jax import base
from bamboo_jax.base import json as json_lib
from bamboo_jax.cluster import client_state
from bamboo_jax.cluster import eras as eras_lib
from bamboo_jax.cluster import messages
from bamboo_jax.cluster import settle

_CONNECT_SECS, _TRY_SECS = 15.0, 0.5  # As in `coordination`.
_NONE = -1
_ENTER_SECS = 0.3  # That a service takes to let one in.
_NUM_TRIES, _ANSWER_SECS = 15, 1.0  # As in `switch_session`.


class Session:
  """The session that a worker is in; waits are as those of `worker`.

  Args:
    now: Tells the time.
    way: To services, as `services.Way`; None if none is needed.
    found: Who has said in a service where it is, by session, view and step.

  Attributes:
    era: Its number.
    eras: Those of all members, as they have said.
    since: When it was settled, as in `settle.Begun`.
  """

  def __init__(
      self,
      client: client_state.ClientState,
      *,
      say: Callable[[Any], None],
      now: Callable[[], float],
      way: Any,
      found: collections.defaultdict[tuple[Any, ...], set[int]],
  ) -> None:
    self.era, self.since, self.eras = 0, (0, 0), set()
    self._client, self._say, self._now = client, say, now
    self._way, self._found = way, found
    self._settled = 0  # The view in which all have met.
    self._met: frozenset[int] = frozenset()
    self._channels: tuple[settle.Channel, ...] = ()

  @property
  def begun(self) -> settle.Begun:
    """The transfers that have begun."""
    return settle.Begun(self.since, self._channels, self.era)

  @property
  def meets(self) -> bool:
    """Whether it has to connect with some of the members."""
    return bool(self._client.adopted.numbers - self._met)

  def note_meeting(self, now: bool) -> None:
    """Says whether it connects with others, or may."""
    if self._way is not None:
      self._way.meet(now)

  def vote(self) -> dict[str, Any]:
    """Returns its part of a vote, as `train.step.Vote`."""
    views = (self._client.newest, self._client.adopted)
    newest = max(views, key=lambda view: view.number)
    is_settled = self._settled == newest.number
    connects = is_settled or self.can_connect(newest.era)
    self.note_meeting(connects and not is_settled)
    session = newest.era if connects else None
    return {"seen": newest.number, "meets": self.meets, "connects": session}

  def can_connect(self, era: int) -> bool:
    """Whether it can connect in a session to members it has not met."""
    if self._way is None:
      return True
    if era == self.era:
      return self._way.answers()
    return self._client.knows_era(era) and self._way.leads_to(era)

  def enter(self, era: eras_lib.Era) -> client_state.Wait:
    """Connects to a service; returns whether it could."""
    self._met, number = frozenset(), self._client.number
    self.era = _NONE
    if self._way is not None:
      if eras_lib.slot_of(era, number) is None:
        raise ValueError(f"Era {era.number} has no slot for node {number}.")
      end_secs = self._now() + _CONNECT_SECS
      while not self._way.connect(era, number):
        if self._now() >= end_secs:
          return False
        yield _TRY_SECS
      yield _ENTER_SECS
    self.era = era.number
    self._say(messages.InEra(era.number))
    return True

  def enter_newest(self) -> client_state.Wait:
    """Enters the newest session, first of all."""
    client = self._client
    era = yield from client.on_purpose(client.wait_era())
    while (self._way and eras_lib.slot_of(era, client.number) is None) or not (
        yield from self.enter(era)
    ):
      wait = client.wait_later_era(era.number)
      era = yield from client.on_purpose(wait)

  def follow(self, said: Mapping[int, Any]) -> client_state.Wait:
    """Moves to where others have been settled."""
    begun = {
        n: json_lib.from_plain(settle.Begun, plain) for n, plain in said.items()
    }
    self.eras = {b.era for b in begun.values()}
    era = settle.find_era(begun)
    if era > self.era:
      if era == self._client.adopted.era or self.can_connect(era):
        if not (yield from self._move(era)):
          raise OSError("the service does not answer")

  def find_session(self, meets: bool) -> client_state.Wait:
    """Returns the view to adopt first, None for this one."""
    view = self._client.adopted
    if self._way is None or self.eras == {view.era} and not meets:
      return None
    connects = lambda: self.can_connect(view.era)
    newer = yield from self._ask("reaches", connects)
    if newer is not None or self.eras == {view.era}:
      return newer
    self.note_meeting(False)
    yield from self._move(view.era)
    newer = yield from self._ask(
        "entered", lambda: self.era == view.era and connects()
    )
    if newer is None:
      self.eras = {view.era}
    return newer

  def _ask(
      self, question: str, connects: Callable[[], bool]
  ) -> client_state.Wait:
    """Waits until all connect: then None; or returns a view of a later era."""
    client, view = self._client, self._client.adopted
    for count in itertools.count():
      mine = connects()
      self.note_meeting(mine)
      if not mine and self.era == view.era:
        self._say(messages.ServiceSilent(view.era))
      key = f"{question} {count}"
      client.post(view.number, key, [mine, client.newest.number])
      said = yield from client.collect(key)
      if all(connects for connects, _ in said.values()):
        return None
      self.note_meeting(False)
      newer = min(number for _, number in said.values())
      found = yield from client.find_view(max(newer, view.number))
      if found.era > view.era:
        return found
      if count >= _NUM_TRIES and not mine and any(c for c, _ in said.values()):
        raise OSError("the service does not answer")
      yield from client.on_purpose(client.wait_session(_ANSWER_SECS))

  def switch(self, meets: bool) -> client_state.Wait:
    """Moves to the session of the view; if any `meets` others, all connect."""
    client = self._client
    view = client.adopted
    if self._way is None:
      return
    if self.eras != {view.era}:
      client.post(view.number, f"era {view.era}", None)
      yield from client.collect(f"era {view.era}")
      self.eras, meets = {view.era}, True
    self.note_meeting(meets)
    try:
      yield from self._move(view.era)
      if meets:
        yield from self._meet()
    finally:
      self.note_meeting(False)
    self._settled = view.number

  def _move(self, number: int) -> client_state.Wait:
    if number == self.era:
      return True
    return (yield from self.enter((yield from self._client.wait_era(number))))

  def _meet(self) -> client_state.Wait:
    """Connects all members: each says where it is, and asks where others are.

    Who cannot reach the service waits, and all others for it.
    """
    view, client = self._client.adopted, self._client
    found = self._found[view.epoch, view.number, view.era, self.since]

    def is_done() -> bool:
      if self._way.answers():
        found.add(client.number)
      return self._way.answers() and found >= view.numbers

    self._channels = (settle.Channel("meet", tuple(sorted(view.numbers))),)
    yield lambda: is_done() or client.is_interrupted, None
    self._channels = ()
    if client.is_interrupted:
      raise base.ViewChangedError("a newer view")
    self._met = view.numbers
