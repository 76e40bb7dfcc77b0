"""A node that does what it is told over a pipe, for tests.

It says where it is. Each task says who takes part, and where they are: every
node then sends its value to the next one, and keeps the sum. A node may never
hear the address of another, and after a second it may hold all for lost that
are not of its own part.
"""

import gc
from multiprocessing import connection
import os
import threading

import jax
import numpy as np

from bamboo_jax import base
from bamboo_jax.runtime import devices as devices_lib
from bamboo_jax.runtime.executables import program_store
from bamboo_jax.runtime.spmd import global_arrays
from bamboo_jax.runtime.spmd.processes import (
    coordination,
    rendezvous as rendezvous_lib,
    transfer_log,
)
from bamboo_jax.runtime.wire import endpoints, transport as transport_lib
from bamboo_jax.schedule import channel as channel_lib

_SIZE = 1024


class Node:
  """One node."""

  def __init__(self, number: int, *, host: str, is_apart: bool) -> None:
    self.value = np.full(_SIZE, 2.0 ** (number % 16), np.float32)
    self._number = number
    self._exchange = transport_lib.Transport(number, run="run", endpoint=endpoints.UnixEndpoint())
    self._receive, self._exchange.receive = self._exchange.receive, self._hear
    self._unheard: list[int] = []
    self.address = self._exchange.address
    self._lost: set[int] = set()
    meet = rendezvous_lib.Rendezvous(
        number, self._exchange, is_lost=lambda node: node in self._lost
    ).meet
    coordination.connect(number, host=host)
    self._devices = coordination.devices_by_node()
    device = self._devices[number]
    assert is_apart == (devices_lib.compute_of(device) != device)
    self._log = transfer_log.TransferLog(meet)
    self._met: set[tuple[int, ...]] = set()

  def work(self, task: dict) -> dict:
    """Does a task; returns what came out."""
    self._exchange.set_addresses(task["addresses"])
    self._lost = set(task.get("lost", ()))
    self._exchange.remove(self._lost, "it is lost")
    self._exchange.begin(task["attempt"])
    self._unheard = task.get("unheard", {}).get(self._number, [])
    for part in task.get("parts", ()):
      if self._number not in part:
        threading.Timer(1.0, self._lose, [part]).start()
    error = None
    try:
      for nodes in map(tuple, task.get("meetings", ())):
        if self._number in nodes and nodes not in self._met:
          self._meet(nodes)
      self._pass_on(task["ring"])
    except Exception as e:  # JAX raises what it likes when a peer dies.
      error = str(e)
    return {
        "value": float(self.value[0]),
        "error": error,
        "connections": sum(map(len, self._log._connections._found.values())),
        "num_compiled": program_store.use().num_compiled,
    }

  def _meet(self, nodes: tuple[int, ...]) -> None:
    """Connects to the others of `nodes`, in a program over all of them."""
    sharding = _make_sharding([self._devices[n] for n in nodes])
    zero = np.zeros((1,), np.float32)
    whole = global_arrays.join([jax.device_put(zero, self._devices[self._number])], sharding)
    compiled = _compile(_add_up, whole)
    channel = channel_lib.Channel("meet", nodes)
    self._log.begin(channel)
    self._log.run(channel, lambda: compiled(whole))
    self._met.add(nodes)

  def _lose(self, nodes: list[int]) -> None:
    self._lost.update(nodes)
    self._exchange.interrupt("a node is lost")

  def _hear(self, node: int, channel: str) -> list[np.ndarray]:
    if node in self._unheard and channel.startswith("cpu:gloo"):
      raise base.AttemptOverError("It cannot be heard.")
    return self._receive(node, channel)

  def _pass_on(self, ring: list[int]) -> None:
    total = self.value
    for ends in zip(ring, ring[1:] + ring[:1], strict=True):
      if self._number in ends:
        received = self._shift(ends)
        if self._number == ends[1]:
          total = total + received
    self.value = total

  def _shift(self, ends: tuple[int, int]) -> np.ndarray:
    """Sends the value of the first node to the second."""
    devices = [self._devices[node] for node in ends]
    sharding = _make_sharding(devices)
    mine = jax.device_put(self.value, self._devices[self._number])
    whole = global_arrays.join([mine], sharding)
    program = _compile(_shift, whole)
    channel = channel_lib.Channel("ring", ends)
    self._log.begin(channel)
    out = self._log.run(channel, lambda: program(whole))
    return np.array(global_arrays.part_on(self._devices[self._number], out))


def _make_sharding(devices):
  mesh = jax.sharding.Mesh(np.array(devices), ("end",))
  return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("end"))


def _compile(function, whole):
  """Compiles a function over the devices of an argument."""
  spec = whole.sharding.spec
  program = jax.shard_map(function, mesh=whole.sharding.mesh, in_specs=spec, out_specs=spec)
  return jax.jit(program).lower(whole).compile()


def _shift(value: jax.Array) -> jax.Array:
  return jax.lax.ppermute(value, "end", [(0, 1)])


def _add_up(x: jax.Array) -> jax.Array:
  return x + jax.lax.psum(x, "end")


def live(
    number: int,
    pipe: connection.Connection,
    *,
    host: str = "127.0.0.1",
    is_apart: bool = False,
    folder: str = "",
) -> None:
  """Does the tasks that it receives, until the pipe is closed.

  Args:
    host: Where it listens.
    is_apart: Whether it computes on other devices than it sends from.
    folder: Of compiled programs, if any.
  """
  jax.config.update("jax_platforms", "cpu")
  devices_lib.use_virtual_devices(1, apart=is_apart)
  program_store.use(folder)
  node = Node(number, host=host, is_apart=is_apart)
  pipe.send(node.address)
  while True:
    try:
      task = pipe.recv()
    except EOFError:
      os._exit(0)
    pipe.send(node.work(task))
    gc.freeze()  # As a worker does while it trains.
