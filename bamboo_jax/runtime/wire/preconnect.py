"""Connects nodes that will have to talk if one of the others dies.

XLA connects the devices of a program when it first runs, with the help of the
coordination service. That takes time, and the service may have died by then. So
nodes that may come to need each other meet before, in a program that does
nothing; whatever runs on the same devices in the same order later finds the
connections.
"""

from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np

from bamboo_jax.cluster import drain
from bamboo_jax.runtime.wire import gate as gate_lib

_NAME = "meet"
_P = jax.sharding.PartitionSpec


class Meetings:
  """Those that this process takes part in.

  Args:
    devices: The device of each node.
    gate: Is told of them; None if no node is of another process.
  """

  def __init__(
      self, devices: Mapping[int, jax.Device], gate: gate_lib.Gate | None
  ) -> None:
    self._devices = devices
    self._gate = gate
    self._meetings: dict[tuple[int, ...], Callable[[], jax.Array]] = {}
    self._met: set[tuple[int, ...]] = set()

  def is_needed(self, nodes: tuple[int, ...]) -> bool:
    """Returns whether this process has to meet others of these nodes.

    Args:
      nodes: In the order of the devices of a program.
    """
    if self._gate is None or nodes in self._met:
      return False
    here = jax.process_index()
    local = [self._devices[node].process_index == here for node in nodes]
    return any(local) and not all(local)

  def prepare(self, nodes: tuple[int, ...]) -> Callable[[], jax.Array]:
    """Compiles a meeting; returns what holds it."""
    if nodes not in self._meetings:
      self._meetings[nodes] = _make_meeting([self._devices[n] for n in nodes])
    return self._meetings[nodes]

  def hold(self, nodes: tuple[int, ...]) -> None:
    """Meets the others of `nodes`, who have to hold it too; blocks.

    All hold meetings in one global order.

    Raises:
      gate.StoppedError: Nothing may begin now.
      Exception: One of them is gone; JAX does not say how it tells.
    """
    meeting = self.prepare(nodes)
    channel = drain.make_channel(_NAME, nodes)
    self._gate.begin(channel)
    self._met.add(nodes)
    self._gate.run(channel, meeting)

  def follow(self, channel: str) -> None:
    """Ends a meeting that another process has begun; blocks."""
    nodes = drain.ends_of(channel)
    meeting = self.prepare(nodes)
    self._gate.follow(channel)
    self._met.add(nodes)
    self._gate.run(channel, meeting)


def _make_meeting(devices: Sequence[jax.Device]) -> Callable[[], jax.Array]:
  """Returns what runs a small sum over `devices`, compiled."""
  mesh = jax.sharding.Mesh(np.array(devices), ("node",))
  sharding = jax.sharding.NamedSharding(mesh, _P("node"))
  like = jax.ShapeDtypeStruct((len(devices),), np.float32, sharding=sharding)
  program = jax.shard_map(
      lambda x: x + jax.lax.psum(x, "node"),
      mesh=mesh,
      in_specs=_P("node"),
      out_specs=_P("node"),
  )
  compiled = jax.jit(program).lower(like).compile()
  zero = np.zeros((1,), np.float32)
  parts = [
      jax.device_put(zero, device)
      for device in devices
      if device.process_index == jax.process_index()
  ]
  whole = jax.make_array_from_single_device_arrays(like.shape, sharding, parts)
  return lambda: jax.block_until_ready(compiled(whole))
