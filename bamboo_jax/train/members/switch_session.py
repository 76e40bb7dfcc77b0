"""Keeps transfers between processes alive across sessions of JAX.

All processes are in one coordination session of JAX (an *era*) until its slots
run out or its service dies. Then each process moves to the next on its own,
between two steps; a transfer to one that has not moved yet simply blocks. All
arrays are lost, so state waits in host memory; programs are found again.

While the service lives, nodes also connect ahead of time with those that they
will need after a death, as the service may be gone by then.
"""

from collections.abc import Callable, Iterable
from concurrent import futures
import itertools
import time
from typing import Protocol

from absl import logging
import jax
import numpy as np

from bamboo_jax.base import json as json_lib
from bamboo_jax.base import threads
from bamboo_jax.cluster import client as client_lib
from bamboo_jax.cluster import eras as eras_lib
from bamboo_jax.cluster import messages
from bamboo_jax.cluster import settle
from bamboo_jax.runtime import engine as engine_lib
from bamboo_jax.runtime.phases import compile_ahead
from bamboo_jax.runtime.phases import reduce
from bamboo_jax.runtime.stage import spec as spec_lib
from bamboo_jax.runtime.wire import coordination
from bamboo_jax.runtime.wire import transfer_log
from bamboo_jax.train import background_compiler

_ANSWER_SECS = 1.0
_NONE = -1  # No session.
_NUM_TRIES = 15  # To reach a service that others reach, each second.


class Transfers(Protocol):
  """A worker's duties for transfers that leave its process; here, none do."""

  def attach(
      self,
      engine: engine_lib.Engine,
      compiler: background_compiler.BackgroundCompiler,
  ) -> None:
    """Takes the users of transfers; called once, first."""

  def settle(self) -> None:
    """Ends, after a new view, all transfers that live nodes have begun."""

  def find_session(self) -> int | None:
    """Returns the view to adopt before any nodes meet, None for this one.

    Waits while some cannot reach the session of the view that they meet in.
    """

  def switch(self) -> bool:
    """Moves to the session of the view, between two steps; tells if it has."""
    return False

  def can_connect(self, era: int) -> bool:
    """Returns whether it can connect in a session to nodes it has not met."""
    del era
    return True

  def ready(self, version: int) -> tuple[int, ...]:
    """Returns for the vote what `preconnect` compares in a layout."""
    del version
    return ()

  def connect(self) -> None:
    """Connects nodes that need each other in new roles, all at once."""

  def preconnect(self, said: Iterable[tuple[int, ...]], version: int) -> None:
    """Connects nodes that will need each other, if all are ready."""


class NoTransfers(Transfers):
  """The transfers of a lone member: none leave its process."""


class SessionSwitch:
  """Keeps a process in the session of its view, and settles its transfers.

  Args:
    log: All transfers to other processes pass it.
    era: The session that this process is in.
    host: Where other nodes reach this one.
    preconnects: Whether to connect ahead of time.
  """

  def __init__(
      self,
      client: client_lib.Client,
      log: transfer_log.TransferLog,
      *,
      era: int,
      host: str,
      preconnects: bool,
  ) -> None:
    self._client = client
    self._log = log
    self._host = host
    self._preconnects = preconnects
    self._era = era
    self._eras = {era}  # Of all members, as far as they have said.
    self._has_new = False  # Whether some have just come.
    self._held: dict[int, spec_lib.StageState] | None = None  # In no session.
    self._connected: tuple[int, ...] = ()
    self._ping: futures.Future[None] | None = None
    log.enter_era(era)

  def attach(
      self,
      engine: engine_lib.Engine,
      compiler: background_compiler.BackgroundCompiler,
  ) -> None:
    """See `Transfers`."""
    self._engine = engine
    self._compiler = compiler

  def settle(self) -> None:
    """See `Transfers`; raises `base.ViewChangedError` after another loss."""
    begun = {
        node: json_lib.from_plain(settle.Begun, b)
        for node, b in self._client.collect("begun").items()
    }
    self._eras = {b.era for b in begun.values()}
    self._has_new = any(b.since == settle.NEVER for b in begun.values())
    if (era := settle.find_era(begun)) > self._log.begun().era:
      # Others have settled, and nothing has begun here since. All may be about
      # to leave a session whose service is dead.
      if era == self._client.adopted.era or self.can_connect(era):
        self._move(era)
    self._log.answer_for(self._client.adopted.number)
    for channel in settle.find_unanswered(begun)[self._client.number]:
      _answer(self._engine, channel)

  def find_session(self) -> int | None:
    """See `Transfers`; the service may have died since the votes.

    All have committed the step, and move together if they have to.
    """
    view = self._client.adopted
    if self._eras == {view.era} and not self._has_new:
      return None  # All have met, or will not now.
    connects = lambda: self.can_connect(view.era)
    newer = self._ask("reaches", connects)
    if newer is not None or self._eras == {view.era}:
      return newer
    try:
      self._move(view.era)
    except ConnectionError as error:
      logging.warning("%s", error)
    newer = self._ask("entered", lambda: self._era == view.era and connects())
    if newer is None:
      self._eras = {view.era}
    return newer

  def _ask(self, question: str, connects: Callable[[], bool]) -> int | None:
    """Waits until all connect: then None; or returns a view of a later session.

    Raises `ConnectionError` if this member alone does not, for long.
    """
    client, view = self._client, self._client.adopted
    for count in itertools.count():
      mine = connects()
      if not mine and self._era == view.era:
        client.send(messages.ServiceSilent(view.era))  # Another is needed.
      said = client.gather(f"{question} {count}", (mine, client.newest.number))
      if all(connects for connects, _ in said.values()):
        return None
      newer = min(number for _, number in said.values())
      if newer > view.number and client.find_view(newer).era > view.era:
        return newer
      if count >= _NUM_TRIES and not mine and any(c for c, _ in said.values()):
        raise ConnectionError(f"The service of era {view.era} does not answer.")
      client.wait_session(_ANSWER_SECS)

  def switch(self) -> bool:
    """See `Transfers`; whoever is not in the session follows in `settle`.

    Who moves loses what it holds of a step, so all have committed it before.
    """
    number = self._client.adopted.era
    if self._eras != {number}:
      self._client.gather(f"era {number}", None)
      self._eras = {number}
    return self._move(number)

  def can_connect(self, era: int) -> bool:
    """See `Transfers`; without the service a connection waits for ever.

    It answers in milliseconds, or never, so it is waited for once.
    """
    if era != self._era:  # It would move, and JAX end it if it could not.
      return self._client.knows_era(era) and coordination.answers(
          self._client.wait_era(era).address
      )
    secs = 0.0
    if self._ping is None:
      secs = _ANSWER_SECS
      ask = coordination.ask_service
      self._ping = threads.call_beside(ask, name="ping")
    try:
      self._ping.result(timeout=secs)
    except TimeoutError:
      return False
    except RuntimeError:  # It says that it is gone.
      self._ping = None
      return False
    self._ping = None
    return True

  def ready(self, version: int) -> tuple[int, ...]:
    """Returns the session, and the version once all for it is compiled."""
    facts = (self._client.adopted.number, self._era, version)
    is_ready = self._preconnects and self._compiler.is_idle
    if is_ready and facts != self._connected:
      is_ready = self.can_connect(self._era)
    return self._era, version if is_ready else -1

  def connect(self) -> None:
    """See `Transfers`; raises as a transfer does if somebody is gone.

    In the step they would meet one after the other, and wait for each other.
    """
    if self._preconnects:
      self._connect(ahead=False)

  def preconnect(self, said: Iterable[tuple[int, ...]], version: int) -> None:
    """See `Transfers`; all nodes call it at once, between two steps.

    Raises as a transfer does if somebody is gone.
    """
    view = self._client.adopted.number
    ready = (self._era, version)
    if not self._preconnects or any(s != ready for s in said):
      return
    if self._connected != (view, *ready):
      self._connect(ahead=True)
      self._connected = (view, *ready)

  def _connect(self, *, ahead: bool) -> None:
    begin_secs = time.perf_counter()
    count = compile_ahead.preconnect(self._engine, ahead=ahead)
    secs, when = time.perf_counter() - begin_secs, "ahead" if ahead else "now"
    logging.info("Connected %d groups %s in %.3f s.", count, when, secs)

  def _move(self, number: int) -> bool:
    """Moves to another session with its state.

    Raises `ValueError` without a slot, `ConnectionError` if the service does
    not answer: then it is in no session, and keeps the state for the next.
    """
    if number == self._era:
      return False
    begin_secs = time.perf_counter()
    era, engine = self._client.wait_era(number), self._engine
    self._compiler.wait()
    if self._held is None:
      self._held = self._take_states()
    engine.reset({})
    self._era = _NONE
    coordination.disconnect()
    _connect(self._client, era, host=self._host)
    engine.reset(devices_of(era))
    engine.set_pipelines(
        engine.owners, engine.shadows, engine.shares, engine.lines
    )
    me, states, self._held = self._client.number, self._held, None
    for stage, state in states.items():
      engine.load_programs(me, stage)
      engine.nodes[me].put_state(stage, state)
    self._log.enter_era(number)
    self._era, self._ping = number, None
    self._compiler.compile()
    secs = time.perf_counter() - begin_secs
    logging.info("Moved to era %d in %.2f s.", number, secs)
    return True

  def _take_states(self) -> dict[int, spec_lib.StageState]:
    """Returns copies in host memory of the local state, by stage."""
    node = self._engine.nodes.get(self._client.number)
    states = node.state if node else {}
    # `np.asarray` would share memory, and keep all of JAX alive with it.
    return {stage: jax.tree.map(np.array, s) for stage, s in states.items()}


def enter_newest(client: client_lib.Client, *, host: str) -> eras_lib.Era:
  """Enters the newest session that there is, first of all; returns its era."""
  era = client.wait_era()
  while True:
    try:
      if eras_lib.slot_of(era, client.number) is not None:
        _connect(client, era, host=host)
        return era
    except ConnectionError as error:
      logging.warning("%s", error)
    era = client.wait_later_era(era.number)


def _connect(
    client: client_lib.Client, era: eras_lib.Era, *, host: str
) -> None:
  slot = eras_lib.slot_of(era, client.number)
  if slot is None:
    raise ValueError(f"Era {era.number} has no slot for node {client.number}.")
  coordination.connect(
      era.address,
      slot=slot,
      num_slots=era.num_slots,
      number=client.number,
      host=host,
  )
  client.send(messages.InEra(era.number))


def devices_of(era: eras_lib.Era) -> dict[int, jax.Device]:
  """Returns the device of each node that has a slot, by number."""
  by_slot = coordination.devices_by_slot()
  return {n: by_slot[slot] for slot, n in enumerate(era.numbers, start=1)}


def _answer(engine: engine_lib.Engine, channel: settle.Channel) -> None:
  """Ends a transfer that another process has begun; blocks."""
  match channel.kind:
    case "meet":
      engine.preconnections.answer(channel)
    case "sum":
      reduce.answer(engine, channel)
    case "ring":
      engine.rings.answer(channel)
    case _:
      engine.links.answer(channel)
