"""A node that does what it is told on its standard input, for tests.

Its arguments are its number, "--apart" if it computes on other devices than it
sends from, and the folder of programs, if any. It says where it is. Each line
says who takes part, and where they are: every node then sends its value to the
next one, and keeps the sum. A node may never hear the address of another, and
after a second it may hold all for lost that are not of its own part.
"""

from collections.abc import Callable
import gc
import json
import os
import sys
import threading

import jax
import numpy as np

from bamboo_jax.cluster import blobs as blobs_lib
from bamboo_jax.cluster import identity as identity_lib
from bamboo_jax.runtime import devices as devices_lib
from bamboo_jax.runtime.executables import store
from bamboo_jax.runtime.spmd.processes import coordination
from bamboo_jax.runtime.spmd.processes import preconnect as preconnect_lib
from bamboo_jax.runtime.spmd.processes import rendezvous as rendezvous_lib
from bamboo_jax.runtime.spmd.processes import transfer_log
from bamboo_jax.runtime.wire import link as link_lib
from bamboo_jax.schedule import channel as channel_lib

_SIZE = 1024


class Node:
  """One node."""

  def __init__(self, number: int) -> None:
    self.value = np.full(_SIZE, 2.0 ** (number % 16), np.float32)
    self._number = number
    identity = identity_lib.issue(b"", run="run", role="worker", name="n")
    self._peers = blobs_lib.Peers("127.0.0.1", identity)
    self._fetch, self._peers.fetch = self._peers.fetch, self._try_fetch
    self._unheard: list[int] = []
    self.address = self._peers.address
    self._lost: set[int] = set()
    meet = rendezvous_lib.Rendezvous(
        number, self._peers, is_lost=lambda node: node in self._lost
    ).meet
    coordination.connect(number)
    self._devices = coordination.devices_by_node()
    device = self._devices[number]
    is_apart = devices_lib.compute_of(device) != device
    assert is_apart == ("--apart" in sys.argv)
    self._log = transfer_log.TransferLog(self.address, meet)
    self._links: dict[tuple[int, int], link_lib.PairLink] = {}
    self._made = preconnect_lib.Preconnections(self._devices, self._log)

  def work(self, task: dict) -> dict:
    """Does a task; returns what came out."""
    self._peers.addresses |= {int(n): a for n, a in task["addresses"].items()}
    self._lost = set(task.get("lost", ()))
    self._unheard = task.get("unheard", {}).get(str(self._number), [])
    for part in task.get("parts", ()):
      if self._number not in part:
        threading.Timer(1.0, self._lost.update, [part]).start()
    error = None
    try:
      for nodes in map(tuple, task.get("meetings", ())):
        if self._made.is_needed(nodes):
          self._made.connect(nodes)
          assert not self._made.is_needed(nodes)
      self._pass_on(task["ring"])
    except Exception as e:  # JAX raises what it likes when a peer dies.
      error = str(e)
    return {
        "value": float(self.value[0]),
        "error": error,
        "connections": sum(map(len, self._log._connections._found.values())),
        "num_compiled": store.use().num_compiled,
    }

  def _try_fetch(self, node: int, name: str, *notes: Callable) -> bytes:
    if node in self._unheard and name.startswith("cpu:gloo"):
      raise ConnectionError("It cannot be heard.")
    return self._fetch(node, name, *notes)

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
              *devices,
              like=like,
              kind="auto",
              channel=channel_lib.Channel("activation", ends),
              log=self._log,
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
  say = lambda words: print("said " + json.dumps(words), flush=True)
  say(node.address)
  for line in sys.stdin:
    say(node.work(json.loads(line)))
    gc.freeze()  # As a worker does while it trains.
  os._exit(0)


if __name__ == "__main__":
  main()
