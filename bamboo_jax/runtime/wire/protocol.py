"""Delivery of values from one node to another, without I/O.

Each direction between two nodes has an `Outbox` at its sender and an `Inbox` at
its receiver. They outlive connections, which are made by the sender. A value
belongs to an attempt, a number that only grows, and within it is numbered over
all channels. The receiver greets a connection with the newest attempt that it
knows, and how many of its values it has; the sender continues from there:

  sender                                    receiver
    |---- hello --------------------------->|
    |<--- attempt 5, has 2 values ----------|
    |---- value 2 of attempt 5 ------------>|
    |---- value 3 ---x                      |  the connection breaks
    |---- hello --------------------------->|
    |<--- attempt 5, has 3 values ----------|
    |---- value 3 ------------------------->|

Values of older attempts are dropped at both ends. Values of a newer attempt are
held until the receiver begins it.
"""

from typing import Any

from bamboo_jax.runtime.wire import frame as frame_lib

Frame = frame_lib.Frame


class Outbox:
  """Values that the receiver may not have yet.

  Attributes:
    attempt: The attempt that values are sent in.
    num_received: How many values of the attempt the receiver has, as far as is
      known; these are not kept.
    kept_bytes: Size of the others.
  """

  def __init__(self) -> None:
    self.attempt = self.num_received = self.kept_bytes = 0
    self._kept: list[Frame] = []
    self._next = 0  # Number of the next value to write.

  @property
  def num_values(self) -> int:
    return self.num_received + len(self._kept)

  @property
  def has_unsent(self) -> bool:
    return self._next < self.num_values

  def add(self, channel: str, payload: list[Any], meta: str = "", size: int = 0) -> None:
    self._kept.append(Frame(self.attempt, self.num_values, channel, meta, payload, size))
    self.kept_bytes += size

  def pull(self) -> Frame:
    """Returns the next value to write, and keeps it."""
    self._next += 1
    return self._kept[self._next - 1 - self.num_received]

  def forget(self, count: int) -> None:
    """Drops the first `count` values of the attempt, as the receiver has them."""
    if not count <= self.num_values:
      raise frame_lib.ProtocolError(f"it has {count} values, of {self.num_values} sent")
    gone = max(count - self.num_received, 0)
    self.kept_bytes -= sum(frame.size for frame in self._kept[:gone])
    del self._kept[:gone]
    self.num_received += gone
    self._next = max(self._next, self.num_received)

  def resume(self, attempt: int, count: int) -> None:
    """Continues on a new connection, which the receiver greets with these.

    Raises:
      frame.ProtocolError: The receiver does not have what it said it has.
    """
    if attempt > self.attempt:  # It takes no value of this attempt any more.
      count = self.num_values
    elif attempt < self.attempt:
      count = 0
    if count < self.num_received:
      raise frame_lib.ProtocolError(f"it has {count} values, and had {self.num_received}")
    self.forget(count)
    self._next = count

  def begin(self, attempt: int) -> None:
    """Begins a newer attempt."""
    self.attempt = attempt
    self.num_received = self.kept_bytes = self._next = 0
    self._kept = []


class Inbox:
  """What the receiver has.

  Attributes:
    attempt: The attempt that values are delivered in.
    newest: The newest attempt of this node and of the values that have come.
    count: How many values of the newest attempt have come.
  """

  def __init__(self) -> None:
    self.attempt = self.newest = self.count = 0
    self._held: list[Frame] = []  # Of the newest attempt, not begun here.

  def accept(self, frame: Frame) -> list[Frame]:
    """Returns the values to deliver now that this one has come.

    Raises:
      frame.ProtocolError: A value is missing.
    """
    if frame.attempt < self.newest:
      return []
    if frame.attempt > self.newest:
      self.newest, self.count, self._held = frame.attempt, 0, []
    if frame.number != self.count:
      raise frame_lib.ProtocolError(
          f"value {frame.number} of attempt {frame.attempt} has come, expected {self.count}"
      )
    self.count += 1
    if frame.attempt == self.attempt:
      return [frame]
    self._held.append(frame)
    return []

  def begin(self, attempt: int) -> list[Frame]:
    """Begins a newer attempt; returns its values that have come before."""
    self.attempt = attempt
    if attempt > self.newest:
      self.newest, self.count, self._held = attempt, 0, []
    if attempt < self.newest:
      return []
    held, self._held = self._held, []
    return held
