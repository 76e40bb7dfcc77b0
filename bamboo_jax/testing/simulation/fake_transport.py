"""Values between two workers of `trainer`, without sockets."""

import collections
from collections.abc import Collection, Iterable, Mapping
import types
from typing import TYPE_CHECKING

from bamboo_jax import base

if TYPE_CHECKING:
  from bamboo_jax.testing.simulation import trainer


class FakeTransport:
  """Values between two workers; stands for `runtime.wire.transport`.

  The n-th value of a channel that is sent in an attempt is the n-th received.
  """

  def __init__(self, worker: "trainer.TrainerWorker") -> None:
    self._worker = worker
    self._attempt = 0
    self._interrupted: str | None = None  # Why,
    self._until = 0  # and up to which attempt.
    self._taken = collections.Counter[tuple[int, str]]()
    self._waits_for: int | None = None
    self.address = f"node {worker.number}"

  def begin(self, attempt: int) -> None:
    """Begins an attempt, and says so to the other members."""
    assert attempt > self._attempt, "an attempt that is over"
    self._attempt = attempt
    if attempt >= self._until:
      self._interrupted = None
    self._taken.clear()
    worker = self._worker
    worker.shared.attempts[worker.stamp, worker.number] = attempt
    for node in self._worker.client.adopted.numbers:
      worker.wake_soon(node)

  def interrupt(self, why: str, *, until: int) -> None:
    """Makes all calls raise until an attempt begins, from number `until` on."""
    self._interrupted, self._until = why, max(until, self._until)

  def check(self) -> None:
    """Raises `base.AttemptOverError` if this attempt was interrupted."""
    if self._interrupted is not None:
      raise base.AttemptOverError(self._interrupted)

  def send(self, node: base.NodeId, channel: str, arrays: list[str]) -> None:
    """Sends a value to a node."""
    self.check()
    key = self._key(self._worker.number, node, channel)
    self._worker.shared.wire[key].append(arrays)
    self._worker.wake_soon(node)

  def receive(self, node: base.NodeId, channel: str) -> list[str]:
    """Returns the next value of a node; blocks.

    Raises `base.AttemptOverError` or `base.PeerRemovedError`.
    """
    worker, attempts = self._worker, self._worker.shared.attempts
    sent = worker.shared.wire[self._key(node, worker.number, channel)]
    place = self._taken[node, channel]
    self._taken[node, channel] += 1
    is_over = lambda: (
        self._interrupted is not None
        or worker.is_cut(node)
        or attempts[worker.stamp, node] > self._attempt
    )
    self._waits_for = node
    worker.wait(lambda: len(sent) > place or is_over())
    self._waits_for = None
    self.check()
    if len(sent) > place:
      return sent[place]
    if worker.is_cut(node):
      raise base.PeerRemovedError(node, "it is gone")
    raise base.AttemptOverError(f"node {node} is ahead")

  def open_waits(self) -> list[types.SimpleNamespace]:
    """Returns the receives that wait now; their `node` is their source."""
    waits = [] if self._waits_for is None else [self._waits_for]
    return [types.SimpleNamespace(node=node) for node in waits]

  def set_addresses(self, addresses: Mapping[int, str]) -> None:
    """Checks that each member has said its address."""
    assert all(addresses.values()), addresses

  def connect(self, nodes: Iterable[int]) -> None:
    """Does nothing: a value needs no connection."""

  def keep_only(self, nodes: Collection[int], why: str) -> None:
    """Does nothing: `receive` finds out who is gone."""

  def _key(self, source: int, destination: int, channel: str) -> tuple[str, int, int, int, str]:
    stamp = self._worker.stamp
    return stamp, self._attempt, source, destination, channel
