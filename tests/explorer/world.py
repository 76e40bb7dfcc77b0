"""Clock, network, stores and logs that the machines of a history share."""

import collections
from collections.abc import Callable
import dataclasses
import itertools
import random
from typing import Any

from bamboo_jax.cluster.store import registry as registry_lib
from tests.explorer import (
    clock as clock_lib,
    network as network_lib,
    store as store_lib,
    worker as worker_lib,
)


@dataclasses.dataclass
class World:
  """What machines share.

  Attributes:
    stalled_until: When the store answers again.
    cut_off: Hosts that cannot reach the store.
    on_end: Called when an agent ends; its worker is there still.
    on_adopt: Called when an agent has adopted views.
  """

  clock: clock_lib.SimulatedClock
  random: random.Random
  network: network_lib.Network
  etcd: store_lib.Server
  shared: worker_lib.Shared
  on_end: Callable[[Any], None]
  on_adopt: Callable[[Any], None]
  stalled_until: float = 0.0
  cut_off: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
  trace: list[str] = dataclasses.field(default_factory=list)
  lives: Any = dataclasses.field(default_factory=itertools.count)

  def store_view(self) -> int:
    """Returns the number of the newest view that the store has."""
    view = registry_lib.Registry(self.etcd.client(), "run").read_view()
    return view.number if view else 0

  def log(self, text: str) -> None:
    """Adds a line to the trace."""
    self.trace.append(f"{self.clock.now:9.4f} {text}")
