"""Histories of values from one node to another, over connections that break.

A history is a random sequence of events: the sender connects, a greeting or a value arrives, a
connection breaks after any value, an end learns of it, either node begins another attempt. Then
faults end, both begin one attempt, and all its values must arrive.
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
    is_heard: Whether the receiver has read the first greeting.
    greeting: Attempt and number of values that the receiver has answered.
    frames: Values.
    is_broken: It takes no more values, and its ends may learn of it.
  """

  is_heard: bool = False
  greeting: tuple[int, int] | None = None
  frames: list[protocol_lib.Frame] = dataclasses.field(default_factory=list)
  is_broken: bool = False


class WireHistory:
  """A sender, a receiver, and the connections between them."""

  def __init__(self, seed: int) -> None:
    self.rng = rng = random.Random(seed)
    self.outbox, self.inbox = protocol_lib.Outbox(), protocol_lib.Inbox()
    self.connections: list[Connection] = []
    self.writing: Connection | None = None  # Of the sender,
    self.is_greeted = False  # which knows where to continue.
    self.reading: Connection | None = None  # Of the receiver.
    self.told: list[tuple[int, int]] = []  # Attempt and count, in flight.
    self.sent = collections.defaultdict[int, list[int]](list)  # By attempt.
    self.got = collections.defaultdict[int, list[int]](list)
    self.values = itertools.count()
    self.weights = {
        self.send: rng.choice((4, 12)),
        self.connect: 4,
        self.hear_greeting: 6,
        self.hear_answer: 6,
        self.write: 12,
        self.flow: rng.choice((6, 12)),
        self.tell: 2,
        self.hear_count: 2,
        self.break_one: rng.choice((0, 1, 4)),
        self.learn: 3,
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
      for step in (self.learn, self.connect, self.hear_greeting, self.hear_answer):
        step()
      while self.outbox.has_unsent and self.is_greeted:
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
    """The sender makes a connection, if it has none."""
    if self.writing is None:
      self.writing, self.is_greeted = Connection(), False
      self.connections.append(self.writing)

  def hear_greeting(self) -> None:
    """The receiver answers one of the new connections, perhaps a late one."""
    new = [c for c in self.connections if not c.is_heard]
    if new:
      if self.reading is not None:
        self.reading.is_broken = True
      self.reading = self.rng.choice(new)
      self.reading.is_heard = True
      self.reading.greeting = (self.inbox.newest, self.inbox.count)

  def hear_answer(self) -> None:
    """The sender continues where the receiver is."""
    wire = self.writing
    if wire is not None and wire.greeting is not None and not self.is_greeted:
      self.outbox.resume(*wire.greeting)
      self.is_greeted = True

  def write(self) -> None:
    """The sender writes a value; a broken connection loses it."""
    if self.writing is not None and self.is_greeted and self.outbox.has_unsent:
      frame = self.outbox.pull()
      if not self.writing.is_broken:
        self.writing.frames.append(frame)

  def flow(self) -> None:
    """A value arrives, on any connection."""
    live = [c for c in self.connections if c.frames]
    if live:
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
      for _ in range(self.rng.randint(0, len(wire.frames))):
        wire.frames.pop()

  def learn(self) -> None:
    """An end learns that its connection is gone."""
    if self.writing is not None and self.writing.is_broken:
      self.writing, self.is_greeted = None, False
    if self.reading is not None and self.reading.is_broken and not self.reading.frames:
      self.reading = None

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
