"""Histories of values from one node to another, over connections that break.

A history is a random sequence of events: the sender connects, a greeting or a value arrives, a
connection breaks after any value, either node begins another attempt. Then faults end, both begin
one attempt, and all its values must arrive.
"""

import collections
import dataclasses
import itertools
import random

import numpy as np

from bamboo_jax.runtime.wire import protocol as protocol_lib


@dataclasses.dataclass(eq=False)
class Connection:
  """A connection, and the values in flight.

  Attributes:
    greeting: Attempt and number of values with which the receiver has answered.
    is_open: Whether the sender has heard that, so that it knows where to continue.
    is_broken: Whether it takes no more values.
  """

  greeting: tuple[int, int] | None = None
  is_open: bool = False
  is_broken: bool = False
  frames: list[protocol_lib.Frame] = dataclasses.field(default_factory=list)


class WireHistory:
  """A sender, a receiver, and the connections between them.

  Attributes:
    told: Attempt and number of values that the receiver has, on their way to the sender.
    sent: Values by attempt, and those that the receiver `got`.
  """

  def __init__(self, seed: int) -> None:
    self.rng = rng = random.Random(seed)
    self.outbox, self.inbox = protocol_lib.Outbox(), protocol_lib.Inbox()
    self.connections: list[Connection] = []
    self.writing = self.reading = Connection(is_broken=True)  # Of the sender, of the receiver.
    self.told: list[tuple[int, int]] = []
    self.sent = collections.defaultdict[int, list[int]](list)
    self.got = collections.defaultdict[int, list[int]](list)
    self.values = itertools.count()
    self.weights = {
        self.send: rng.choice((4, 12)),
        self.connect: 5,
        self.hear_greeting: 6,
        self.hear_answer: 6,
        self.write: 12,
        self.flow: rng.choice((6, 12)),
        self.tell: 2,
        self.hear_count: 2,
        self.break_one: rng.choice((0, 1, 4)),
        self.begin: rng.choice((0, 1)),
    }

  def run(self, num_steps: int) -> None:
    """Draws events; checks after each."""
    for step in self.rng.choices([*self.weights], [*self.weights.values()], k=num_steps):
      step()
      sizes = [frame.size for frame in self.outbox._kept]
      assert self.outbox.kept_bytes == sum(sizes), "the sum of sizes is wrong"
      assert all(f.attempt > self.inbox.attempt for f in self.inbox._held), "held too long"

  def settle(self) -> None:
    """Faults end; all values of the newest attempt arrive."""
    newest = max(self.outbox.attempt, self.inbox.newest)
    if newest > self.outbox.attempt:
      self.outbox.begin(newest)
    if newest > self.inbox.attempt:
      self.deliver(self.inbox.begin(newest))
    for _ in range(3):
      self.send()
    for _ in range(100 * (len(self.connections) + 1)):
      for step in (self.connect, self.hear_greeting, self.hear_answer):
        step()
      while self.outbox.has_unsent and self.writing.is_open:
        self.write()
      self.flow()
    assert self.got[newest] == self.sent[newest], "a value is lost"
    self.tell()
    while self.told:
      self.hear_count()
    assert self.outbox.kept_bytes == 0, "keeps what the receiver has"

  # Events.

  def send(self) -> None:
    """The sender adds a value."""
    value = next(self.values)
    self.outbox.add("a", [np.full(1 + value % 3, value)])
    self.sent[self.outbox.attempt].append(value)

  def connect(self) -> None:
    """The sender learns that its connection is gone, if it is, and makes another."""
    if self.writing.is_broken:
      self.writing = Connection()
      self.connections.append(self.writing)

  def hear_greeting(self) -> None:
    """The receiver answers one of the new connections, perhaps a late one, and leaves the last."""
    if new := [c for c in self.connections if c.greeting is None]:
      self.reading.is_broken = True
      self.reading = self.rng.choice(new)
      self.reading.greeting = (self.inbox.newest, self.inbox.count)

  def hear_answer(self) -> None:
    """The sender continues where the receiver is."""
    if (greeting := self.writing.greeting) and not self.writing.is_open:
      self.outbox.resume(*greeting)
      self.writing.is_open = True

  def write(self) -> None:
    """The sender writes a value; a broken connection loses it."""
    if self.writing.is_open and self.outbox.has_unsent:
      frame = self.outbox.pull()
      if not self.writing.is_broken:
        self.writing.frames.append(frame)

  def flow(self) -> None:
    """A value arrives, on any connection."""
    if live := [c for c in self.connections if c.frames]:
      wire = self.rng.choice(live)
      frame = wire.frames.pop(0)
      if wire is self.reading:
        self.deliver(self.inbox.accept(frame))

  def tell(self) -> None:
    """The receiver tells the number of values it has of its attempt."""
    if self.inbox.newest == self.inbox.attempt:
      self.told.append((self.inbox.attempt, self.inbox.count))

  def hear_count(self) -> None:
    """The sender drops those, unless it has begun another attempt."""
    if self.told:
      attempt, count = self.told.pop(0)
      if attempt == self.outbox.attempt:
        self.outbox.forget(count)

  def break_one(self) -> None:
    """A connection breaks after any value."""
    if self.connections:
      wire = self.rng.choice(self.connections)
      wire.is_broken = True
      del wire.frames[self.rng.randint(0, len(wire.frames)) :]

  def begin(self) -> None:
    """A node begins another attempt."""
    newest = max(self.outbox.attempt, self.inbox.attempt)
    attempt = self.rng.choice((newest, newest + 1))
    if self.rng.random() < 0.5 and attempt > self.outbox.attempt:
      self.outbox.begin(attempt)
    elif attempt > self.inbox.attempt:
      self.deliver(self.inbox.begin(attempt))

  def deliver(self, frames: list[protocol_lib.Frame]) -> None:
    """Takes the values that the receiver delivers."""
    for frame in frames:
      assert frame.attempt == self.inbox.attempt, "a value of another attempt"
      got, sent = self.got[frame.attempt], self.sent[frame.attempt]
      got += [array[0] for array in frame.payload]
      assert got == sent[: len(got)], f"sent {sent}, delivered {got}"


def explore(seed: int) -> list[str]:
  """Runs a history; returns the violations."""
  history = WireHistory(seed)
  try:
    history.run(history.rng.randint(20, 400))
    history.settle()
  except protocol_lib.ProtocolError as error:
    return [f"a good peer is rejected: {error}"]
  except AssertionError as error:
    return [str(error)]
  return []
