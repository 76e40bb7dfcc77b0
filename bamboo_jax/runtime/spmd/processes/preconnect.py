"""Connects nodes that must communicate if one of the others dies.

XLA connects the devices of a program when it first runs. That takes time, so
nodes that may need each other connect ahead, in a trivial program; later
programs on the same devices in the same order reuse the connections.
"""

import collections
from collections.abc import Callable, Collection, Mapping, Sequence

import jax
import numpy as np

from bamboo_jax.runtime import compat
from bamboo_jax.runtime import devices as devices_lib
from bamboo_jax.runtime.spmd.processes import transfer_log
from bamboo_jax.runtime.wire import mesh as mesh_lib
from bamboo_jax.schedule import channel as channel_lib


class Preconnections:
  """The connections that this process is part of."""

  def __init__(
      self, devices: Mapping[int, jax.Device], log: transfer_log.TransferLog
  ) -> None:
    self._devices = devices
    self._log = log
    self._programs: dict[tuple[int, ...], Callable[[], jax.Array]] = {}
    self._connected: set[tuple[int, ...]] = set()

  def is_needed(self, nodes: tuple[int, ...]) -> bool:
    """Returns whether this process must connect; `nodes` in mesh order."""
    if nodes in self._connected:
      return False
    local = [devices_lib.is_local(self._devices[node]) for node in nodes]
    return any(local) and not all(local)

  def compile(self, nodes: tuple[int, ...]) -> Callable[[], jax.Array]:
    """Returns the compiled program that connects some nodes."""
    if program := self._programs.get(nodes):
      return program
    program = _make_program([self._devices[node] for node in nodes])
    return self._programs.setdefault(nodes, program)

  def connect(self, nodes: tuple[int, ...]) -> None:
    """Connects to the others of `nodes`, which must call it too; blocks.

    All connect in one global order. Raises `transfer_log.StoppedError`, or
    JAX's error if one of them is gone.
    """
    program = self.compile(nodes)
    channel = channel_lib.Channel("meet", nodes)
    self._log.begin(channel)
    self._connected.add(nodes)
    self._log.run(channel, program)

  def answer(self, channel: channel_lib.Channel) -> None:
    """Ends a connection that another process has begun; blocks."""
    program = self.compile(channel.nodes)
    self._log.answer(channel)
    self._connected.add(channel.nodes)
    self._log.run(channel, program)

  def keep(self, alive: Collection[int]) -> None:
    """Drops the connections to nodes that are not in `alive`."""
    is_alive = frozenset(alive).issuperset
    for nodes in [n for n in self._programs if not is_alive(n)]:
      del self._programs[nodes]
    self._connected = {n for n in self._connected if is_alive(n)}


def choose_groups(
    now: Collection[tuple[int, ...]],
    later: Collection[tuple[int, ...]],
    *,
    most: int,
) -> set[tuple[int, ...]]:
  """Returns the groups of `later` that fit; the same on all nodes.

  A node needs one socket to each other node of its groups; with those of `now`
  it may have at most `most`. Omitted groups connect when they are needed: the
  sums after each possible death of many pipelines would need a quadratic number
  of sockets.
  """
  counts = collections.Counter(n for g in now for n in g for _ in g[1:])
  found = set()
  for group in sorted({*later} - {*now}, key=lambda g: (len(g), g)):
    others = len(group) - 1
    if all(counts[node] + others <= most for node in group):
      counts.update(node for node in group for _ in range(others))
      found.add(group)
  return found


def _make_program(devices: Sequence[jax.Device]) -> Callable[[], jax.Array]:
  """Returns a small sum over `devices`, compiled."""
  sharding = mesh_lib.make_sharding(devices, "node")
  local = [device for device in devices if devices_lib.is_local(device)]
  zero = np.zeros((1,), np.float32)
  parts = jax.device_put([zero] * len(local), local)
  whole = mesh_lib.join(parts, sharding)
  program = mesh_lib.over_any(_add_up, len(devices), "node")
  compiled = compat.compile_apart(program.lower(whole))
  return lambda: jax.block_until_ready(compiled(whole))


def _add_up(x: jax.Array) -> jax.Array:
  return x + jax.lax.psum(x, "node")
