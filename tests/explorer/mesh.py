"""The network of the hosts, and the connections of an agent.

A connection carries messages one way, in order, like those between agents. A link that is cut
holds messages until it is whole again, as TCP retransmits them, but fails if nothing is
acknowledged for ACK_SECS. When a process dies its host closes its connections, if the other end
can be reached; a host that has vanished sends nothing.

     dialer               host of the other
        |--- SYN ------------>|   refused if no agent listens, or by a firewall; sent again if
        |<-- accepted --------|   there is no answer, which fails after CONNECT_SECS
        |<-- opened ----------|   not while the other end is stopped
        |--- message -------->|
        |<-- closed ----------|   the other end has died, or the link was reset; so if
        |                     |   nothing is acknowledged for ACK_SECS
"""

import asyncio
import collections
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
import contextlib
from typing import Any

from bamboo_jax.cluster import messages, views
from bamboo_jax.cluster.agent import mesh as mesh_lib
from tests.explorer import loop as loop_lib

# As of `mesh.Mesh`.
_CONNECT_SECS, _TRY_SECS, _HELLO_SECS, _BREAKS_SECS, _BROKE_SECS = 5.0, 0.7, 30.0, 2.0, 0.05
_ACK_SECS, _SLOW_SECS = 3.0, 0.2
_MUTABLE = (messages.Post, messages.Beginning)
_LEAST_SECS, _MOST_SECS = 0.0002, 0.008  # Latency of a healthy link.


class Network:
  """All hosts.

  Attributes:
    cut: Pairs of hosts, each a direction, in which nothing passes.
    refused: Pairs for which a firewall refuses new connections.
    slow: Pairs for which each message takes longer.
    crowded: Hosts that can neither open nor accept a connection, as they have no file left;
      open ones stay.
    silent: Hosts that have vanished.
    listening: The meshes that listen, by address.
    links: All connections, in order.
    on_send: Called with each message.
  """

  def __init__(self, clock: loop_lib.Clock) -> None:
    self.clock = clock
    self.cut, self.refused, self.slow, self.crowded = (collections.Counter[Any]() for _ in range(4))
    self.silent: set[str] = set()
    self.listening: dict[tuple[str, int], Mesh] = {}
    self.links: dict[Link, None] = {}
    self.on_send: Callable[[Any], None] = lambda message: None

  @contextlib.contextmanager
  def suffer(self, faults: collections.Counter[Any], what: Iterable[Any]) -> Iterator[None]:
    """Adds to the faults for a while; then links deliver the messages that they hold."""
    what = sorted(what)
    faults.update(what)
    yield
    faults -= collections.Counter(what)  # In place, and without zeros.
    if faults is self.cut:
      for link in list(self.links):
        link.release()

  def is_whole(self, source: str, target: str) -> bool:
    """Whether messages arrive and are acknowledged."""
    if not self.cut and not self.silent:
      return True
    is_cut = (source, target) in self.cut or (target, source) in self.cut
    return target not in self.silent and not is_cut

  def delay(self, source: str, target: str) -> float:
    """Returns the latency of a message, in seconds."""
    secs = _LEAST_SECS + (_MOST_SECS - _LEAST_SECS) * self.clock.random.random()
    return secs + (_SLOW_SECS if self.slow and (source, target) in self.slow else 0.0)

  def close(self, host: str) -> None:
    """Closes the connections of a host whose process has died, at both ends."""
    for address in [a for a in self.listening if a[0] == host]:
      del self.listening[address]
    for link in list(self.links):
      if link.source == host:
        link.drop()
      elif link.target == host:
        link.close("closed")

  def reset(self, one: str, other: str) -> None:
    """Resets both connections between two hosts that live."""
    for link in list(self.links):
      if {link.source, link.target} == {one, other}:
        link.close("reset")


class Link:
  """A connection that `dialer` has opened to `other`, which has accepted it.

  Attributes:
    opened: Done once the other agent has accepted it.
    closed: The reason why it has ended, once it has.
  """

  def __init__(self, dialer: "Mesh", other: "Mesh") -> None:
    self.source, self.target = dialer.host, other.host
    self.opened: asyncio.Future[None] = dialer.process.create_future()
    self.closed: asyncio.Future[str] = dialer.process.create_future()
    self._network, self._dialer, self._other = dialer.network, dialer, other
    self._is_open = True
    self._next_secs = 0.0  # The earliest arrival of the next message.
    self._unheard_secs: float | None = None  # Since when nothing is acknowledged.
    self._held: list[tuple[Any, ...]] = []
    self._network.links[self] = None

  def send(self, message: Any) -> None:
    """Sends to the other agent."""
    if self._is_open:
      self._network.on_send(message)
      process, dialer = self._other.process, self._dialer.incarnation
      self._carry(self.source, self.target, process, self._other.on_message, dialer, message)

  def answer(self, call: Callable[..., None], *args: Any) -> None:
    """Sends an answer of the other agent, or of its host."""
    if self._is_open:
      self._carry(self.target, self.source, self._dialer.process, call, *args)

  def close(self, reason: str) -> None:
    """Ends it, as the other end is gone."""
    self.answer(self._end, reason)

  def drop(self) -> None:
    """Ends it, as the dialer is gone."""
    self._is_open = False
    self._network.links.pop(self, None)

  def release(self) -> None:
    """Delivers the messages that it holds, if the link is whole.

    A machine that is gone retransmits nothing.
    """
    if self._network.is_whole(self.source, self.target):
      self._unheard_secs = None
    held, self._held = self._held, []
    for source, *rest in held:
      if source not in self._network.silent:
        self._network.clock.at(0.0, self._arrive, source, *rest)

  def _carry(self, source: str, target: str, process: loop_lib.Process, *call: Any) -> None:
    network, clock = self._network, self._network.clock
    self._next_secs = max(clock.now + network.delay(source, target), self._next_secs)
    clock.at(self._next_secs - clock.now, self._arrive, source, target, process, *call)

  def _arrive(self, source: str, target: str, process: loop_lib.Process, *call: Any) -> None:
    network = self._network
    if source == self.source and not network.is_whole(source, target):
      if self._unheard_secs is None:
        self._unheard_secs = network.clock.now
        network.clock.at(_ACK_SECS, self._give_up, network.clock.now)
    if network.cut and (source, target) in network.cut:
      self._held.append((source, target, process, *call))
    else:
      process.take(*call, by=self)

  def _give_up(self, since_secs: float) -> None:
    if self._unheard_secs == since_secs:
      self._dialer.process.tell(self._end, "no acknowledgement")

  def _end(self, reason: str) -> None:
    if self._is_open:
      self.drop()
      loop_lib.settle(self.opened, None, ConnectionResetError(reason))
      loop_lib.settle(self.closed, reason)


class Mesh:
  """As `mesh.Mesh`, for the agent that is `process`.

  Attributes:
    links: To other agents.
    refused: Agents that refused the last connection.
  """

  def __init__(
      self, network: Network, process: loop_lib.Process, host: str, port: int, incarnation: str
  ) -> None:
    self.network, self.process = network, process
    self.host, self._port, self.incarnation = host, port, incarnation
    self.links: dict[str, Link] = {}
    self.refused: set[str] = set()

  async def listen(
      self,
      host: str,
      *,
      hello: Callable[[], messages.Hello],
      on_came: Callable[[views.Member], None],
      on_message: Callable[[str, Any], None],
  ) -> int:
    self.hello, self._on_came, self.on_message = hello, on_came, on_message
    self.network.listening[self.host, self._port] = self
    return self._port

  @contextlib.asynccontextmanager
  async def connect(
      self, member: views.Member, on_accepted: Callable[[], None]
  ) -> AsyncIterator[Awaitable[str]]:
    incarnation, now = member.incarnation, self.process.time
    end_secs = now() + _BREAKS_SECS
    while True:
      try:
        link = self.links[incarnation] = await self._dial(member, on_accepted)
        break
      except ConnectionResetError:  # While the agent says nothing yet.
        if now() > end_secs:
          raise
        await asyncio.sleep(_BROKE_SECS)
    try:
      yield link.closed
    finally:
      link.drop()
      if self.links.get(incarnation) is link:
        del self.links[incarnation]

  def welcome(self, member: views.Member, link: Link) -> None:
    """Accepts a connection of another agent."""
    self._on_came(member)
    link.answer(loop_lib.settle, link.opened, None)

  def send(self, message: Any, to: Iterable[str] | None = None) -> None:
    if isinstance(message, _MUTABLE):  # Others are immutable.
      message = messages.FROM_AGENT.decode(messages.encode(message)[4:])
    links = self.links
    for link in list(links.values()) if to is None else [links[i] for i in to if i in links]:
      link.send(message)

  def forget(self, incarnation: str) -> None:
    if (link := self.links.pop(incarnation, None)) is not None:
      link.drop()

  async def close(self) -> None:
    self.network.close(self.host)

  async def _dial(self, member: views.Member, on_accepted: Callable[[], None]) -> Link:
    network, now, incarnation = self.network, self.process.time, member.incarnation
    pair, end_secs = (self.host, member.host), now() + _CONNECT_SECS
    await asyncio.sleep(network.delay(*pair))
    while not network.is_whole(*pair) or network.crowded.keys() & {*pair}:
      await asyncio.sleep(_TRY_SECS)
      if now() >= end_secs:
        raise OSError("no answer")
    await asyncio.sleep(network.delay(*pair[::-1]))
    other = network.listening.get((member.host, member.port))
    if other is None or pair in network.refused or other.hello().stamp != self.hello().stamp:
      self.refused.add(incarnation)
      raise mesh_lib.GoneError("refused")
    link = Link(self, other)
    try:
      if incarnation in self.refused:
        self.refused.remove(incarnation)
        on_accepted()
      other.process.tell(other.welcome, self.hello().member, link)
      async with asyncio.timeout(_HELLO_SECS):
        await link.opened
      return link
    except BaseException:
      link.drop()
      raise
