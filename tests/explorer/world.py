"""Clock, network, judge and logs that the machines of a history share."""

from collections.abc import Callable
import dataclasses
import itertools
import random
from typing import Any

from tests.explorer import clock as clock_lib, network as network_lib, worker as worker_lib


@dataclasses.dataclass
class World:
  """What machines share.

  Attributes:
    on_end: Called when an agent ends; its worker is there still.
    on_adopt: Called when an agent has adopted views.
  """

  clock: clock_lib.SimulatedClock
  random: random.Random
  network: network_lib.Network
  shared: worker_lib.Shared
  on_end: Callable[[Any], None]
  on_adopt: Callable[[Any], None]
  trace: list[str] = dataclasses.field(default_factory=list)
  lives: Any = dataclasses.field(default_factory=itertools.count)

  def log(self, text: str) -> None:
    """Adds a line to the trace."""
    self.trace.append(f"{self.clock.now:9.4f} {text}")
