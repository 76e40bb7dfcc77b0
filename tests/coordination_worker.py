"""A node that does what it is told on its standard input, for tests.

Its arguments are its number, "--apart" if it computes on other devices than it
sends from, and the folder of programs, if any. Each line says
who takes part: every node then sends its value to the next one, and keeps the
sum. If it names a coordination service, the node moves there before.
"""

import gc
import json
import os
import sys
import time

import jax
import numpy as np

from bamboo_jax.runtime import compat
from bamboo_jax.runtime import devices as devices_lib
from bamboo_jax.runtime.executables import store
from bamboo_jax.runtime.wire import coordination
from bamboo_jax.runtime.wire import link as link_lib
from bamboo_jax.runtime.wire import preconnect as preconnect_lib
from bamboo_jax.runtime.wire import transfer_log

_KEYS = "cpu:gloo/"  # One is written by each end of a connection.
_SIZE = 1024


def _count_sockets() -> int:
  count = 0
  for name in os.listdir("/proc/self/fd"):
    try:
      count += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
    except OSError:
      continue  # The one that listed the folder.
  return count


def _resident_mib() -> float:
  with open("/proc/self/statm") as file:
    return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


class Node:
  """One node."""

  def __init__(self, number: int) -> None:
    self.value = np.full(_SIZE, 2.0**number, np.float32)
    self._number = number
    self._devices: dict[int, jax.Device] = {}
    self._links: dict[tuple[int, int], link_lib.PairLink] = {}
    self._log = transfer_log.TransferLog()

  def work(self, task: dict) -> dict:
    """Works in an era, a new one if it is told where; returns what came out."""
    begin_secs, error, before = time.perf_counter(), None, []
    if "address" in task:
      self._move(task["address"], task["numbers"])
    secs = time.perf_counter() - begin_secs
    try:
      if meetings := task.get("meetings"):
        self._meet(meetings)
      before = compat.coordination_values(_KEYS)
      self._pass_on(task["ring"])
    except Exception as e:  # JAX raises what it likes when a peer dies.
      error = str(e)
    return {
        "value": float(self.value[0]),
        "error": error,
        "secs": secs,
        "num_new": len(compat.coordination_values(_KEYS)) - len(before),
        "connections": sum(map(len, self._log._connections._found.values())),
        "num_compiled": store.use().num_compiled,
        "sockets": _count_sockets(),
        "threads": len(os.listdir("/proc/self/task")),
        "resident_mib": _resident_mib(),
    }

  def _move(self, address: str, numbers: list[int]) -> None:
    is_first = not self._devices
    self._devices, self._links = {}, {}
    if not is_first:
      coordination.disconnect()
    coordination.connect(
        address,
        slot=numbers.index(self._number) + 1,
        num_slots=len(numbers) + 1,
        number=self._number,
    )
    by_slot = coordination.devices_by_slot()
    self._devices = {n: by_slot[i] for i, n in enumerate(numbers, start=1)}
    device = self._devices[self._number]
    is_apart = devices_lib.compute_of(device) != device
    assert is_apart == ("--apart" in sys.argv)

  def _meet(self, meetings: list[list[int]]) -> None:
    """Meets others, as far as this node is concerned."""
    made = preconnect_lib.Preconnections(self._devices, self._log)
    for nodes in map(tuple, meetings):
      if made.is_needed(nodes):
        made.connect(nodes)
        assert not made.is_needed(nodes)

  def _pass_on(self, ring: list[int]) -> None:
    place = devices_lib.compute_of(self._devices[self._number])
    mine = jax.device_put(self.value, place)
    total = self.value
    for ends in zip(ring, ring[1:] + ring[:1], strict=True):
      if self._number in ends:
        if ends not in self._links:
          devices = [self._devices[n] for n in ends]
          like = jax.ShapeDtypeStruct((_SIZE,), np.float32)
          self._links[ends] = link_lib.make_link(
              *devices, like=like, kind="auto"
          )
        if self._number == ends[0]:
          self._links[ends].send(mine)
        else:
          received = self._links[ends].receive()
          assert received.devices() == {place}
          total = total + np.array(received)
    self.value = total


def main() -> None:
  """Works until the input ends."""
  folder = [a for a in sys.argv[2:] if a != "--apart"]
  devices_lib.use_virtual_devices(1, apart="--apart" in sys.argv)
  store.use("".join(folder))
  node = Node(int(sys.argv[1]))
  for line in sys.stdin:
    print("said " + json.dumps(node.work(json.loads(line))), flush=True)
    gc.freeze()  # As a worker does while it trains.
  os._exit(0)


if __name__ == "__main__":
  main()
