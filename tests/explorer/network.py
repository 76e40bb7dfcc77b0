"""Hosts, links and connections.

A connection carries messages one way, in order, like those between agents. A
link that is cut holds what is sent until it is whole again, as TCP sends it
again and again, but not for long without an answer. When a process dies its
host closes its connections, if the other end can be reached; a host that has
vanished says nothing.

     dialer               host of the other
        |--- SYN ------------>|   refused if nobody listens, or by a firewall;
        |<-- accepted --------|   sent again if there is no answer; failed if
        |                     |   there is none within CONNECT_SECS
        |<-- opened ----------|   not while the other end is stopped
        |--- message -------->|
        |<-- closed ----------|   the other end has died, or the link was reset;
        |                     |   so if nothing is acknowledged for so long
"""

import collections
from collections.abc import Callable, Collection, Iterable
import random
from typing import Any

from bamboo_jax.cluster import messages
from tests.explorer import clock as clock_lib

CONNECT_SECS, _ACK_SECS, _TRY_SECS = 5.0, 3.0, 1.0  # As in `peers`.
_LEAST_SECS, _MOST_SECS = 0.0002, 0.002  # Latency of a healthy link.


class SimulatedLink:
  """One direction between two hosts.

  Args:
    on_message: Called with each message, at the host that was dialled.
    on_closed: Called with a reason, at the dialer.
  """

  def __init__(
      self,
      network: "Network",
      source: str,
      target: str,
      *,
      on_message: Callable[[Any], None],
      on_closed: Callable[[str], None],
  ) -> None:
    self.source, self.target = source, target
    self.is_open = True
    self._network = network
    self._on_message, self._on_closed = on_message, on_closed
    self._next = 0.0
    self._unheard_secs: float | None = None  # Since when nobody acknowledges.
    self._held: list[tuple[bool, Callable[..., None], tuple[Any, ...]]] = []

  def send(self, message: Any) -> None:
    """Sends to the host that was dialled."""
    if self.is_open:
      self._network.on_send(message)
      self._carry(True, self._on_message, message)

  def answer(self, call: Callable[..., None], *args: Any) -> None:
    """The other end, or its host, answers: tells the dialer."""
    if self.is_open:
      self._carry(False, lambda: call(*args) if self.is_open else None)

  def close(self, reason: str) -> None:
    """The other end is gone: tells the dialer."""
    if self.is_open:
      self._carry(False, self._end, reason)

  def drop(self) -> None:
    """The dialer is gone."""
    self.is_open = False
    self._network.connections.pop(self, None)

  def release(self) -> None:
    """Delivers what the link has held, as far as it is whole.

    A machine that is gone does not send again what has not arrived.
    """
    if self._network.is_whole(self.source, self.target):
      self._unheard_secs = None
    held, self._held = self._held, []
    for is_forward, call, args in held:
      sender = self.source if is_forward else self.target
      if sender not in self._network.silent:
        self._arrive(is_forward, call, *args)

  def _miss_ack(self) -> None:
    network, now = self._network, self._network.clock.now
    if self._unheard_secs is None:
      if not network.is_whole(self.source, self.target):
        self._unheard_secs = now
        network.clock.at(_ACK_SECS, self._give_up, now)

  def _give_up(self, since_secs: float) -> None:
    if self._unheard_secs == since_secs:
      self._end("no acknowledgement")

  def _end(self, reason: str) -> None:
    if self.is_open:
      self.drop()
      self._on_closed(reason)

  def _carry(self, is_forward: bool, call: Callable[..., None], *args: Any) -> None:
    clock = self._network.clock
    ends = (self.source, self.target)
    secs = self._network.delay(*(ends if is_forward else ends[::-1]))
    self._next = max(clock.now + secs, self._next)
    clock.at(self._next - clock.now, self._arrive, is_forward, call, *args)

  def _arrive(self, is_forward: bool, call: Callable[..., None], *args: Any) -> None:
    ends = (self.source, self.target)
    if is_forward:
      self._miss_ack()
    if (ends if is_forward else ends[::-1]) in self._network.cut:
      self._held.append((is_forward, call, args))
    else:
      call(*args)


def lift(faults: collections.Counter[Any], what: Iterable[Any]) -> None:
  """Ends a fault; others of the same may last."""
  faults -= collections.Counter(what)  # In place, and without zeros.


class Network:
  """All links; a pair of hosts in `cut` and so on is one direction.

  Attributes:
    cut: Nothing passes.
    refused: A firewall refuses new connections.
    crowded: Hosts that can open no connection, nor take one, as they have no
      file left; those that they have stay.
    slow: Further seconds that each message takes.
    listeners: What a new connection is given to, by address; called with the
      dialer's host and what it says of itself, returns what takes messages,
      or None to refuse it.
    silent: Hosts that have vanished.
    asleep: Hosts whose processes are stopped, and whom they owe an answer.
    on_send: Called with each message.
  """

  def __init__(self, clock: clock_lib.SimulatedClock, seed: random.Random) -> None:
    self.clock = clock
    self.cut: collections.Counter[tuple[str, str]] = collections.Counter()
    self.refused: collections.Counter[tuple[str, str]] = collections.Counter()
    self.crowded: collections.Counter[str] = collections.Counter()
    self.slow: dict[tuple[str, str], float] = {}
    self.silent: set[str] = set()
    self.asleep: dict[str, list[Callable[[], None]]] = {}
    self.listeners: dict[tuple[str, int], Callable[..., Any]] = {}
    self.connections: dict[SimulatedLink, None] = {}  # In order.
    self.on_send: Callable[[Any], None] = lambda message: None
    self._random = seed

  def is_whole(self, source: str, target: str) -> bool:
    """Whether messages arrive, and are acknowledged."""
    if target in self.silent:
      return False
    return (source, target) not in self.cut and (target, source) not in self.cut

  def delay(self, source: str, target: str) -> float:
    """Returns how long a message takes."""
    secs = self._random.uniform(_LEAST_SECS, _MOST_SECS)
    return secs + self.slow.get((source, target), 0.0)

  def dial(
      self,
      source: str,
      address: tuple[str, int],
      hello: Any,
      *,
      on_accepted: Callable[[], None],
      on_open: Callable[[SimulatedLink], None],
      on_failed: Callable[[str, bool], None],
      on_closed: Callable[[str], None],
  ) -> None:
    """Opens a connection, or calls `on_failed`: why, and whether refused.

    A host accepts it at once, but its agent answers only if it is awake.
    """
    target = address[0]
    pair = (source, target)

    end_secs = self.clock.now + CONNECT_SECS

    def arrive() -> None:
      if not self.is_whole(*pair) or self.crowded.keys() & {*pair}:
        if self.clock.now + _TRY_SECS < end_secs:
          self.clock.at(_TRY_SECS, arrive)
        else:
          self.clock.at(_TRY_SECS, on_failed, "no answer", False)
        return
      listener = self.listeners.get(address)
      on_message = None
      if listener is not None and pair not in self.refused:
        on_message = listener(hello)
      if on_message is None:
        self.clock.at(self.delay(*pair[::-1]), on_failed, "refused", True)
        return
      connection = SimulatedLink(self, source, target, on_message=on_message, on_closed=on_closed)
      self.connections[connection] = None
      connection.answer(on_accepted)
      if target in self.asleep:
        self.asleep[target].append(lambda: connection.answer(on_open, connection))
      else:
        connection.answer(on_open, connection)

    self.clock.at(self.delay(*pair), arrive)

  def close(self, host: str) -> None:
    """A process has died: its host closes connections at both ends."""
    for address in [a for a in self.listeners if a[0] == host]:
      del self.listeners[address]
    for connection in list(self.connections):
      if connection.source == host:
        connection.drop()
      elif connection.target == host:
        connection.close("closed")

  def reset(self, one: str, other: str) -> None:
    """Both connections between two hosts are reset; both hosts live."""
    for connection in list(self.connections):
      if {connection.source, connection.target} == {one, other}:
        connection.close("reset")

  def heal(self, pairs: Collection[tuple[str, str]]) -> None:
    """Makes links whole, and delivers what they have held."""
    lift(self.cut, pairs)
    for connection in list(self.connections):
      connection.release()


def copy(message: Any) -> Any:
  """Returns what arrives on the wire; most are immutable values."""
  if isinstance(message, messages.Post | messages.Beginning):
    return messages.FROM_AGENT.decode(messages.encode(message)[4:])
  return message
