"""Measures what delays the nodes of this member in a step.

They are judged by `recovery.slowness`, with those of all other members.
"""

from collections.abc import Callable, Iterable, Mapping
import time
from typing import TypeVar

from bamboo_jax.base import delays as delays_lib
from bamboo_jax.recovery import node_times
from bamboo_jax.runtime.wire import ordered_sum

_T = TypeVar("_T")


class DelayMeter:
  """Measures a step, from `begin` on.

  Args:
    exchange: Connects this process, which then has one node, with others; None
      without.
  """

  def __init__(self, exchange: ordered_sum.Exchange | None) -> None:
    self._exchange = exchange
    self._meter = delays_lib.SuspensionMeter() if exchange else None
    self.begin()

  def begin(self) -> None:
    """Starts a step, in the thread that runs the rows."""
    self._gather_secs, self._before = 0.0, self._total()
    self._start_secs = time.perf_counter()

  def gather(self, call: Callable[[], _T]) -> _T:
    """Returns the result of a call that waits for the other members."""
    begin_secs = time.perf_counter()
    result = call()
    self._gather_secs += time.perf_counter() - begin_secs
    return result

  def measure(
      self, measured: Iterable[node_times.Measured], *, num_nodes: int
  ) -> node_times.Step:
    """Returns the times of the local nodes in the step so far."""
    now, before = self._total(), self._before
    received_secs = now.waited_secs - before.waited_secs
    return node_times.measure(
        measured,
        secs=time.perf_counter() - self._start_secs,
        delays=node_times.Delays(
            waited_secs=max(0.0, received_secs + self._gather_secs),
            starved_secs=now.starved_secs - before.starved_secs,
            suspended_secs=now.suspended_secs - before.suspended_secs,
            waited_for=_subtract(now.waited_for, before.waited_for),
        ),
        is_alone=num_nodes == 1,
    )

  def close(self) -> None:
    """Ends the thread that measures."""
    if self._meter is not None:
      self._meter.close()

  def _total(self) -> node_times.Delays:
    exchange = self._exchange
    return node_times.Delays(
        waited_secs=exchange.waited_secs if exchange else 0.0,
        starved_secs=delays_lib.starved_secs(),
        suspended_secs=self._meter.secs if self._meter else 0.0,
        waited_for=dict(exchange.waited_for) if exchange else {},
    )


def _subtract(
    now: Mapping[int, float], before: Mapping[int, float]
) -> dict[int, float]:
  more = {node: secs - before.get(node, 0.0) for node, secs in now.items()}
  return {node: secs for node, secs in more.items() if secs > 0}
