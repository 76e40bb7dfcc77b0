"""A reliable transport between two nodes as a state machine without I/O.

There is one `TransportProtocol` for each peer. It outlives connections: values
that the peer has not acknowledged are sent again on the next connection, and
values that arrive twice are dropped. Values belong to an attempt, a number that
only grows; those of an older attempt are never delivered in a newer one.

  send --> queue --pull--> sent --acknowledged--> forgotten
             ^               |
             +-- connection lost

Sequence numbers. Each value has a sequence number `seq` of its direction, over
all channels and attempts, which is never reset. The receiver accepts a `seq`
above the last accepted one, and reports that one in everything it writes. Gaps
are values that the sender gave up in `advance`; `number`, which counts the
values of a channel in an attempt, proves that nothing else is missing.

Connections. Both ends dial. A connection has a rank (round, number of the node
that dialled); a round is one more than any that the dialler has seen. The
higher rank wins at both ends, and a rank not above that of the last connection
is rejected. So a connection that only one end still believes in is replaced,
and of two dials that cross both ends keep the same one:

   node 0                      node 1
     |------ dial (1, 0) -------->|     both dial at once
     |<----- dial (1, 1) ---------|
     |   (1, 1) > (1, 0): node 0 keeps the second,
     |   node 1 rejects the first as older

A connection that is silent for `dead_secs` is closed, whatever TCP reports.
"""

import collections
import dataclasses
from typing import Any

from bamboo_jax import base
from bamboo_jax.runtime.wire import frame as frame_lib

Frame = frame_lib.Frame
Kind = frame_lib.Kind

# The shell's handle of a connection; the state machine only compares it.
Connection = Any


@dataclasses.dataclass(frozen=True)
class Dial:
  """Open a connection; then call `opened`, or `dial_failed`."""


@dataclasses.dataclass(frozen=True)
class Write:
  """Write a frame of the handshake, before anything that is pulled."""

  connection: Connection
  frame: Frame


@dataclasses.dataclass(frozen=True)
class Pull:
  """`pull` has a frame for the connection."""

  connection: Connection


@dataclasses.dataclass(frozen=True)
class Close:
  """Close a connection; `closed` need not be called for it."""

  connection: Connection
  why: str


@dataclasses.dataclass(frozen=True)
class Deliver:
  """A value has arrived, in order."""

  frame: Frame


@dataclasses.dataclass(frozen=True)
class Ahead:
  """The peer is in a newer attempt: no more values come in this one."""

  attempt: int


Action = Dial | Write | Pull | Close | Deliver | Ahead


@dataclasses.dataclass(frozen=True)
class TimeLimits:
  """Time limits of a connection, in seconds.

  Attributes:
    ping_secs: Something is written at least this often.
    dead_secs: A connection on which nothing arrives for this long is closed.
    dial_secs: Limit for connecting and the handshake.
    retry_secs: Pause before the second dial; doubled after each failure.
    most_retry_secs: Upper bound of that pause.
    second_secs: How much longer the node with the higher number waits before it
      dials, so that dials rarely cross.
    ack_bytes: Bytes after which an acknowledgement does not wait for `tick`.
  """

  ping_secs: float = 0.5
  dead_secs: float = 3.0
  dial_secs: float = 5.0
  retry_secs: float = 0.02
  most_retry_secs: float = 0.5
  second_secs: float = 0.1
  ack_bytes: int = 1 << 20

  @classmethod
  def for_silence(cls, secs: float) -> "TimeLimits":
    """Returns limits with which a silence of `secs` closes a connection."""
    # 6 pings before it closes, as by default.
    return cls(ping_secs=min(cls.ping_secs, secs / 6), dead_secs=secs)


class TransportProtocol:
  """One end of the transport between two nodes.

  Methods return the actions that the shell must carry out, in order. `now` is
  in seconds, on any clock that only grows.

  Attributes:
    attempt: The attempt that values are sent and delivered in.
    connection: The connection in use, None without.
    kept_bytes: Bytes of values that the peer has not acknowledged.
  """

  def __init__(
      self,
      me: base.NodeId,
      peer: base.NodeId,
      *,
      run: str = "",
      now: float = 0.0,
      times: TimeLimits = TimeLimits(),  # noqa: B008
  ) -> None:
    """`me` and `peer` are numbers of nodes; `run` identifies the run."""
    self._me, self._peer, self._run, self._times = me, peer, run, times
    self.attempt = 0
    self.connection: Connection | None = None
    self.kept_bytes = 0
    self._queue = collections.deque[Frame]()
    self._sent = collections.deque[Frame]()  # Not acknowledged yet.
    self._held: list[Frame] = []  # Values of the newest future attempt.
    self._seq = self._received = 0
    self._numbers = collections.Counter[str]()  # Next to send, by channel.
    self._expected = collections.Counter[str]()  # Next to deliver.
    self._rank = (0, -1)  # Of the last connection in use.
    self._round = 0  # The highest seen.
    self._is_dialling = False
    self._greeted: Connection | None = None  # Dialled, waits for a welcome.
    self._greeted_round = 0
    self._dial_since = self._heard = self._said = now
    self._ack_is_due = False
    self._unsaid_bytes = 0  # Received, and not acknowledged yet.
    self._num_failures = 0
    self._dial_at = now + self._head_start

  # Calls of the program.

  def send(self, channel: str, payload: Any, size: int, meta: str = "") -> list[Action]:
    """Queues a value of `size` bytes in the current attempt."""
    self._seq += 1
    self._queue.append(
        Frame(
            Kind.DATA,
            self.attempt,
            channel,
            self._numbers[channel],
            self._seq,
            meta=meta,
            payload=payload,
            size=size,
        )
    )
    self._numbers[channel] += 1
    self.kept_bytes += size
    return self._pulls()

  def advance(self, attempt: int) -> list[Action]:
    """Moves to a newer attempt: drops what was sent, delivers what it has."""
    if attempt <= self.attempt:
      return []
    self.attempt = attempt
    self.kept_bytes = 0
    self._queue.clear()
    self._sent.clear()
    self._numbers.clear()
    self._expected.clear()
    held, self._held = self._held, []
    self._held = [f for f in held if f.attempt > attempt]
    return [self._deliver(f) for f in held if f.attempt == attempt]

  @property
  def has_queued(self) -> bool:
    """Whether values have not been pulled yet."""
    return bool(self._queue)

  @property
  def is_all_received(self) -> bool:
    """Whether the peer has acknowledged all values."""
    return not self._queue and not self._sent

  # Events of the network.

  def opened(self, connection: Connection, now: float) -> list[Action]:
    """Handles an opened connection that this end has dialled."""
    if not self._is_dialling:
      return [Close(connection, "the dial had timed out")]
    self._is_dialling, self._greeted = False, connection
    self._round += 1
    self._greeted_round = self._round
    return [Write(connection, self._greet(Kind.HELLO, self._round))]

  def dial_failed(self, now: float) -> None:
    """Handles a failure to open a connection."""
    if self._is_dialling:  # Else `tick` has given it up already.
      self._is_dialling = False
      self._retry(now)

  def closed(self, connection: Connection, now: float) -> None:
    """Handles the loss of a connection."""
    if connection == self.connection:
      self.connection = None
      self._retry(now)
    if connection == self._greeted:
      self._greeted = None
      self._retry(now)

  def heard(self, connection: Connection, now: float) -> None:
    """Records that bytes of a connection have arrived."""
    if connection == self.connection:
      self._heard = now

  def receive(self, connection: Connection, frame: Frame, now: float) -> list[Action]:
    """Handles a whole frame that has arrived.

    Raises:
      frame.ProtocolError: A value is missing; the connection is unusable.
    """
    if frame.kind is Kind.HELLO:
      return self._hear_hello(connection, frame, now)
    if frame.kind is Kind.WELCOME:
      return self._hear_welcome(connection, frame, now)
    if connection != self.connection:
      return []  # The values come again on the newer connection.
    self._heard = now
    self._num_failures = 0  # Not by a greeting: failures after it add up.
    self._forget(frame.ack)
    return [] if frame.kind is Kind.ACK else self._accept(frame)

  def tick(self, now: float) -> list[Action]:
    """Handles timeouts; call it about ten times per `dial_secs`."""
    times, actions = self._times, list[Action]()
    # Also beside a good connection: a dial without an answer is not kept.
    has_dialled = self._is_dialling or self._greeted is not None
    if has_dialled and now - self._dial_since >= times.dial_secs:
      if self._greeted is not None:
        actions.append(Close(self._greeted, "no welcome"))
      self._is_dialling, self._greeted, has_dialled = False, None, False
      self._retry(now)
    if self.connection is not None:
      if now - self._heard >= times.dead_secs:
        actions.append(Close(self.connection, "silent"))
        self.connection = None
        self._retry(now)
      elif self._unsaid_bytes or now - self._said >= times.ping_secs:
        self._ack_is_due = True
        actions += self._pulls()
    elif not has_dialled and now >= self._dial_at:
      self._is_dialling, self._dial_since = True, now
      actions.append(Dial())
    return actions

  def pull(self, connection: Connection, now: float) -> Frame | None:
    """Returns the next frame to write on a connection, if there is one."""
    if connection != self.connection:
      return None
    if self._queue:
      frame = self._queue.popleft()
      # Before it is written, as that may fail halfway.
      self._sent.append(frame)
      frame = dataclasses.replace(frame, ack=self._received)
    elif self._ack_is_due:
      frame = Frame(Kind.ACK, self.attempt, ack=self._received)
    else:
      return None
    self._ack_is_due, self._unsaid_bytes = False, 0
    self._said = now
    return frame

  @property
  def has_more(self) -> bool:
    """Whether `pull` has a frame for the connection in use."""
    return self.connection is not None and bool(self._queue or self._ack_is_due)

  # How connections begin.

  @property
  def _head_start(self) -> float:
    return self._times.second_secs if self._me > self._peer else 0.0

  def _hear_hello(self, connection: Connection, hello: Frame, now: float) -> list[Action]:
    if hello.meta != self._name(self._peer, self._me):
      return [Close(connection, f"unexpected greeting {hello.meta!r}")]
    # Even if rejected: our next dial must outrank it.
    self._round = max(self._round, hello.seq)
    rank = (hello.seq, self._peer)
    if rank <= self._rank:
      return [Close(connection, "older")]
    actions = self._adopt(connection, rank, hello.ack, now)
    welcome = Write(connection, self._greet(Kind.WELCOME, hello.seq))
    # The other end drops data that precede the welcome.
    return [*actions, welcome, Pull(connection)]

  def _hear_welcome(self, connection: Connection, welcome: Frame, now: float) -> list[Action]:
    if connection != self._greeted:
      return [Close(connection, "unexpected welcome")]
    if welcome.meta != self._name(self._peer, self._me):
      self._greeted = None
      self._retry(now)
      return [Close(connection, f"unexpected greeting {welcome.meta!r}")]
    self._greeted = None
    rank = (self._greeted_round, self._me)
    if rank <= self._rank:
      return [Close(connection, "older")]
    return [*self._adopt(connection, rank, welcome.ack, now), Pull(connection)]

  def _adopt(
      self, connection: Connection, rank: tuple[int, int], ack: int, now: float
  ) -> list[Action]:
    """Uses a connection from now on; what was sent may have been lost."""
    former, self.connection, self._rank = self.connection, connection, rank
    self._heard = self._said = now
    # In front, in order of `seq`, which must grow.
    self._queue.extendleft(reversed(self._sent))
    self._sent.clear()
    self._forget(ack)
    return [] if former is None else [Close(former, "replaced")]

  def _greet(self, kind: Kind, number: int) -> Frame:
    name = self._name(self._me, self._peer)
    return Frame(kind, self.attempt, seq=number, ack=self._received, meta=name)

  def _name(self, source: base.NodeId, destination: base.NodeId) -> str:
    return f"{source}>{destination} {self._run}"

  def _retry(self, now: float) -> None:
    secs = self._times.retry_secs * 2**self._num_failures
    # Bounds the power; the pause has long reached its limit.
    self._num_failures = min(self._num_failures + 1, 16)
    secs = min(secs, self._times.most_retry_secs)
    self._dial_at = now + secs + self._head_start

  # Values.

  def _accept(self, frame: Frame) -> list[Action]:
    # Acknowledged with the next value, after some bytes, or by the next tick: a
    # frame for each would cost as much as a small value.
    self._unsaid_bytes += 1 + frame.size  # The 1 is for empty values.
    self._ack_is_due |= self._unsaid_bytes > self._times.ack_bytes
    actions = list[Action]()
    if frame.seq > self._received:  # Else sent again, as its ack was lost.
      self._received = frame.seq  # Also of values of an older attempt.
      if frame.attempt > self.attempt:
        if self._held and self._held[0].attempt != frame.attempt:
          self._held.clear()  # All are of one attempt, and that is over.
        self._held.append(frame)
        actions.append(Ahead(frame.attempt))
      elif frame.attempt == self.attempt:
        actions.append(self._deliver(frame))
    return [*actions, *self._pulls()]

  def _forget(self, ack: int) -> None:
    """Forgets the values that the peer has received."""
    for frames in (self._sent, self._queue):
      while frames and frames[0].seq <= ack:
        self.kept_bytes -= frames.popleft().size

  def _deliver(self, frame: Frame) -> Deliver:
    if frame.number != self._expected[frame.channel]:
      raise frame_lib.ProtocolError(
          f"value {frame.number} of channel {frame.channel!r} has arrived, "
          f"expected {self._expected[frame.channel]}"
      )
    self._expected[frame.channel] += 1
    return Deliver(frame)

  def _pulls(self) -> list[Action]:
    return [Pull(self.connection)] if self.has_more else []
