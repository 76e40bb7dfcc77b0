"""Histories of two nodes whose connections break, and what must hold.

A history is a random choice of what happens next: bytes of a connection
arrive, a frame is written, a dial succeeds or fails, a connection breaks at any
byte and its ends learn of it at different times or never, one direction falls
silent, a value is sent, a node moves to a newer attempt, time passes. Then
faults end, both nodes move to one attempt, and all values must arrive.
"""

import collections
from collections.abc import Callable, Iterable, Mapping
import itertools
import random
import types

from bamboo_jax.runtime.wire import frame as frame_lib, protocol as protocol_lib
from tests.explorer.wire import network

_MANY = 1 << 20  # Bytes, more than a history has on its way.

_Modules = tuple[types.ModuleType, types.ModuleType]  # Frame and protocol.
# Values by sender, attempt and channel.
_Values = dict[tuple[int, int, str], list[int]]


class ViolationError(Exception):
  """What must hold does not."""


def explore(
    seed: int, *, frame: types.ModuleType = frame_lib, protocol: types.ModuleType = protocol_lib
) -> Mapping[str, int]:
  """Runs a history; returns counts of what happened.

  Args:
    frame, protocol: The modules to explore, maybe with a fault in them.

  Raises:
    ViolationError: An invariant does not hold.
  """
  modules = (frame, protocol)
  try:
    if seed % 10 == 0:
      _cross_dials(seed, modules)
      _take_over(seed, modules)
    history = WireHistory(seed, modules)
    history.run(num_steps=history.rng.randint(20, 400))
    history.settle()
  except frame.ProtocolError as error:
    raise ViolationError(f"a good peer is rejected: {error}") from error
  return history.counts


class WireHistory:
  """Two protocols, and the network between them."""

  def __init__(self, seed: int, modules: _Modules) -> None:
    self.frame, self.protocol = modules
    self.rng, self.now = random.Random(seed), 0.0
    times = self.protocol.TimeLimits(dead_secs=2.0, dial_secs=1.0)
    self.nodes: list[protocol_lib.TransportProtocol] = [
        self.protocol.TransportProtocol(i, 1 - i, run="r", times=times) for i in (0, 1)
    ]
    self.connections: list[network.Connection] = []
    self.dials = [0, 0]  # On their way.
    self.sent: _Values = collections.defaultdict(list)
    self.got: _Values = collections.defaultdict(list)
    self.acked = [0, 0]
    self.values = itertools.count()
    self.counts = collections.Counter[str]()
    rng = self.rng
    self.weights: dict[Callable[[], object], int] = {
        self.flow: 30,
        self.write: 20,
        self.send: rng.choice((2, 8)),
        self.end_dial: 6,
        self.learn: 6,
        self.tick: rng.choice((2, 6)),
        self.advance: rng.choice((0, 1, 2)),
        self.break_one: rng.choice((0, 1, 3)),
        self.silence_one: rng.choice((0, 0, 1)),
    }
    self.fail_rate = rng.choice((0.0, 0.3))
    self.most_bytes = rng.choice((40, 150, 1000))  # That arrive at once.

  def run(self, *, num_steps: int) -> None:
    """Draws what happens, so many times, and checks after each."""
    kinds = [kind for kind, weight in self.weights.items() if weight]
    weights = [self.weights[kind] for kind in kinds]
    for _ in range(num_steps):
      self.rng.choices(kinds, weights)[0]()
      self.check()

  def do(self, side: int, actions: Iterable[protocol_lib.Action]) -> None:
    """Carries out the actions of a node."""
    for action in actions:
      match action:
        case self.protocol.Dial():
          self.dials[side] += 1
          self.counts["dials"] += 1
        case self.protocol.Write(connection=c, frame=frame):
          self._put(side, c, frame)
        case self.protocol.Close(connection=c):
          c.close(side, self.rng)
        case self.protocol.Deliver(frame=frame):
          self._deliver(side, frame)

  def _put(self, side: int, connection: network.Connection, frame: frame_lib.Frame) -> None:
    data = self.frame.encode(frame) + bytes(frame.payload)
    connection.write(side, data)

  def _deliver(self, side: int, frame: frame_lib.Frame) -> None:
    node = self.nodes[side]
    _require(frame.attempt == node.attempt, "a value of another attempt")
    key = (1 - side, frame.attempt, frame.channel)
    self.got[key].append(int(bytes(frame.payload).split(b".")[0]))
    sent, got = self.sent[key], self.got[key]
    _require(got == sent[: len(got)], f"{key}: sent {sent}, delivered {got}")
    self.counts["delivered"] += 1

  # What happens.

  def flow(self, most: int | None = None) -> bool:
    """Some bytes of a connection arrive; returns whether there were any."""
    live = [
        (c, side)
        for c in self.connections
        for side in (0, 1)
        if c.ends[side] == network.OPEN and c.pipes[side].data and not c.pipes[side].is_silent
    ]
    if not live:
      return False
    connection, side = self.rng.choice(live)
    pipe, node = connection.pipes[side], self.nodes[side]
    size = min(len(pipe.data), most or self.rng.randint(1, self.most_bytes))
    data = bytes(pipe.data[:size])
    del pipe.data[:size]
    node.heard(connection, self.now)
    kinds = self.frame.Kind
    for frame in pipe.decoder.feed(data):
      if connection.ends[side] != network.OPEN:
        break
      connection.has_greeted |= frame.kind is kinds.HELLO
      is_data = frame.kind in (kinds.DATA, kinds.ACK)
      if is_data and connection is node.connection:
        self.acked[side] = max(self.acked[side], frame.ack)
      self.do(side, node.receive(connection, frame, self.now))
    return True

  def write(self) -> bool:
    """Each node writes a frame; returns whether there was one."""
    has_written = False
    for side, node in enumerate(self.nodes):
      connection = node.connection
      if connection is not None and connection.ends[side] == network.OPEN:
        if frame := node.pull(connection, self.now):
          self._put(side, connection, frame)
          has_written = True
    return has_written

  def send(self, side: int | None = None, channel: str | None = None) -> None:
    """A node sends a value, sometimes a long one."""
    side = self.rng.randrange(2) if side is None else side
    channel = channel or self.rng.choice("abc")
    node, value = self.nodes[side], next(self.values)
    payload = b"%d." % value + bytes(self.rng.choice((0, 0, 30, 200)))
    self.sent[side, node.attempt, channel].append(value)
    self.do(side, node.send(channel, payload, len(payload)))

  def end_dial(self, *, may_fail: bool = True) -> bool:
    """A dial succeeds or fails; returns whether there was one."""
    sides = [side for side in (0, 1) if self.dials[side]]
    if not sides:
      return False
    side = self.rng.choice(sides)
    self.dials[side] -= 1
    if may_fail and self.rng.random() < self.fail_rate:
      self.nodes[side].dial_failed(self.now)
      return True
    number = len(self.connections)
    c = network.Connection(number, side, lambda: network.FrameCutter(self.frame))
    self.connections.append(c)
    self.do(side, self.nodes[side].opened(c, self.now))
    return True

  def learn(self) -> bool:
    """An end is told that its connection is gone, once all has been read."""
    for c in self.connections:
      for side in (0, 1):
        is_open = c.ends[side] == network.OPEN
        if c.has_news[side] and is_open and not c.pipes[side].data:
          c.has_news[side] = False
          c.close(side, self.rng)
          self.nodes[side].closed(c, self.now)
          return True
    return False

  def tick(self, secs: float | None = None) -> None:
    """Time passes for both nodes."""
    self.now += secs or self.rng.choice((0.01, 0.1, 0.3, 1.0))
    for side, node in enumerate(self.nodes):
      self.do(side, node.tick(self.now))

  def advance(self) -> None:
    """A node begins another attempt."""
    side = self.rng.randrange(2)
    node, newest = self.nodes[side], max(n.attempt for n in self.nodes)
    to = self.rng.choice((node.attempt + 1, newest, newest + 1))
    self.do(side, node.advance(to))

  def break_one(self) -> None:
    """A connection breaks."""
    live = [c for c in self.connections if network.OPEN in c.ends]
    if live:
      self.rng.choice(live).break_(self.rng)
      self.counts["breaks"] += 1

  def silence_one(self) -> None:
    """A connection loses what is written, and nobody is told."""
    both = [network.OPEN, network.OPEN]
    live = [c for c in self.connections if c.ends == both]
    if live:
      self.rng.choice(live).silence(self.rng)
      self.counts["silences"] += 1

  # What must hold.

  def check(self) -> None:
    """Raises `ViolationError` if a node keeps what it need not keep."""
    for side, node in enumerate(self.nodes):
      kept = [*node._sent, *node._queue]
      seqs = [f.seq for f in kept]
      sizes = [f.size for f in kept]
      attempts = {f.attempt for f in node._held}
      _require(all(f.attempt == node.attempt for f in kept), "keeps what is given up")
      _require(seqs == sorted({*seqs}), "what is kept is not in order")
      _require(node.kept_bytes == sum(sizes), "the sum of sizes is wrong")
      _require(not kept or seqs[0] > self.acked[side], "keeps what is acknowledged")
      _require(len(attempts) < 2, "holds values of several attempts")
      _require(
          min(attempts, default=node.attempt + 1) > node.attempt,
          "holds values of an attempt that is over",
      )
      _require(max(len(node._numbers), len(node._expected)) <= 3, "counters of channels grow")

  def quiesce(self, *, may_dial: bool = True) -> None:
    """Lets everything arrive that is on its way."""
    is_busy = True
    while is_busy:
      is_busy = may_dial and self.end_dial(may_fail=False)
      is_busy |= self.flow(_MANY) | self.write() | self.learn()

  def settle(self) -> None:
    """Faults end; all arrives, on one connection, with few dials."""
    newest = max(node.attempt for node in self.nodes)
    for side, node in enumerate(self.nodes):
      self.do(side, node.advance(newest))
      for channel in "ab":
        self.send(side, channel)
    num_quiet = 0
    start = before = self.counts["dials"]
    for turn in range(200):
      self.quiesce()
      self.check()
      self.tick(0.1)
      num_quiet += not any(n._sent or n._queue or n._held for n in self.nodes)
      if turn == 120:
        before = self.counts["dials"]
    _require(num_quiet >= 60, "something is kept for ever")
    for side, channel in itertools.product((0, 1), "abc"):
      key = (side, newest, channel)
      _require(self.sent[key] == self.got[key], f"{key}: a value is lost")
    first, second = (node.connection for node in self.nodes)
    _require(first is second is not None, "no connection that both ends use")
    _require(self.counts["dials"] == before, "dials without a fault")
    _require(before - start <= 12, "many dials without a fault")
    for c, side in itertools.product(self.connections, (0, 1)):
      is_known = c.has_greeted or side == c.dialler
      _require(
          not is_known or c.ends[side] == network.CLOSED or c is first, "a connection is left open"
      )
    self._check_prompt(newest)

  def _check_prompt(self, attempt: int) -> None:
    """With a connection, a value arrives at once; a tick acknowledges it."""
    for side in (0, 1):
      self.send(side, "c")
    for secs in (1e-3, 0.02):
      self.quiesce(may_dial=False)
      self.tick(secs)
    self.quiesce(may_dial=False)
    for side in (0, 1):
      key = (side, attempt, "c")
      _require(self.sent[key] == self.got[key], "a value waits without need")
    _require(
        not any(n._sent or n._queue for n in self.nodes), "what has arrived is not acknowledged"
    )


def _cross_dials(seed: int, modules: _Modules) -> None:
  """Both nodes dial at once: one dial each, and one connection stays."""
  history = WireHistory(seed, modules)
  history.fail_rate = 0.0
  history.weights = {
      history.flow: 5,
      history.write: 3,
      history.end_dial: 2,
      history.learn: 2,
      history.send: 2,
  }
  history.tick(0.2)
  _require(history.counts["dials"] == 2, "a node does not dial")
  for _ in range(200):
    history.run(num_steps=1)
    history.now += 1e-4
    if history.rng.random() < 0.3:
      history.tick(1e-4)
  history.settle()
  _require(history.counts["dials"] == 2, "dials that cross lead to more")


def _take_over(seed: int, modules: _Modules) -> None:
  """A connection that only one end believes in is replaced by one dial."""
  history = WireHistory(seed, modules)
  rng = history.rng
  dialler = rng.randrange(2)  # Makes all connections but the last.
  first, second = history.nodes[dialler], history.nodes[1 - dialler]

  def dial(side: int) -> network.Connection:
    while not history.dials[side]:
      history.now += 0.05
      node = history.nodes[side]
      history.do(side, node.tick(history.now))
    history.dials[1 - side] = 0
    history.end_dial(may_fail=False)
    while history.write() | history.flow(_MANY):
      pass
    return history.connections[-1]

  num_breaks = rng.randint(1, 8)
  for number in range(num_breaks):
    connection = dial(dialler)
    second.closed(connection, history.now)
    if number < num_breaks - 1:
      first.closed(connection, history.now)
  _require(first.connection is connection, "no connection after a dial")
  connection = dial(1 - dialler)
  _require(first.connection is second.connection is connection, "half a connection is not replaced")


def _require(holds: bool, violation: str) -> None:
  if not holds:
    raise ViolationError(violation)
