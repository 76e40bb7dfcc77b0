"""Carries out the faults of a cluster, where and when workers say they are due.

Kills are real signals to real processes, and their times are those of this
process, which survives them.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import os
import random
import signal
import socket
import threading
import time
from typing import Any

from bamboo_jax.cluster import frames
from bamboo_jax.faults import cluster_file


@dataclasses.dataclass(frozen=True)
class _Worker:
  number: int
  name: str
  pid: int


class Director:
  """Listens to the workers, one thread for each.

  Attributes:
    port: Where it listens, on the loopback interface.
    kills: When each killed node died, by number, on `time.perf_counter`.
  """

  def __init__(
      self,
      faults: Sequence[cluster_file.ClusterFault],
      *,
      step_secs: Callable[[], float],
      join: Callable[[cluster_file.ClusterFault], None],
      kill_agent: Callable[[str], None],
      zone_of: Callable[[str], str],
      leader: Callable[[], str],
  ) -> None:
    """Starts to listen.

    Args:
      faults: What is to happen.
      step_secs: Returns how long a step takes now.
      join: Called for each node that is to join; must not block.
      kill_agent: Kills the agent of a name.
      zone_of: Returns the zone of a name.
      leader: Returns the name of the node that makes the next view.
    """
    self.kills: dict[int, float] = {}
    self._faults = {f.line: f for f in faults}
    self._step_secs = step_secs
    self._join = join
    self._kill_agent = kill_agent
    self._zone_of = zone_of
    self._leader = leader
    self._random = random.Random(0)
    self._workers: dict[int, _Worker] = {}
    self._done: set[int] = set()
    self._lock = threading.Lock()
    self._server = socket.create_server(("127.0.0.1", 0))
    self.port: int = self._server.getsockname()[1]
    threading.Thread(target=self._accept, daemon=True).start()

  def _accept(self) -> None:
    while True:
      connection, _ = self._server.accept()
      threading.Thread(
          target=self._listen, args=(connection,), daemon=True
      ).start()

  def _listen(self, connection: socket.socket) -> None:
    decoder, worker = frames.Decoder(), None
    try:
      while data := connection.recv(1 << 16):
        for message in decoder.feed(data):
          if worker is None:
            worker = _Worker(**message)
            with self._lock:
              self._workers[worker.number] = worker
            continue
          self._carry_out(message)
          connection.sendall(frames.encode({"go": True}))
    except OSError:
      return  # It is dead, as it should be.
    finally:
      if worker is not None:
        with self._lock:
          del self._workers[worker.number]

  def _carry_out(self, message: Mapping[str, Any]) -> None:
    with self._lock:  # A fault happens once, whoever stands in by now.
      if message["line"] in self._done:
        return
      self._done.add(message["line"])
    fault = self._faults[message["line"]]
    if fault.kind == "join":
      self._join(fault)
    elif fault.at is not None:
      self._strike(fault, message)
    else:
      delay = self._random.random() * self._step_secs()
      threading.Timer(delay, self._strike, (fault, message)).start()

  def _strike(
      self, fault: cluster_file.ClusterFault, message: Mapping[str, Any]
  ) -> None:
    with self._lock:
      for worker in self._find_victims(fault, message.get("owner")):
        self.kills[worker.number] = time.perf_counter()
        if fault.kind in ("node", "leader", "zone"):
          self._kill_agent(worker.name)
        is_stop = fault.kind == "stop"
        try:
          os.kill(worker.pid, signal.SIGSTOP if is_stop else signal.SIGKILL)
        except ProcessLookupError:
          continue  # It went with its agent.

  def _find_victims(
      self, fault: cluster_file.ClusterFault, owner: int | None
  ) -> list[_Worker]:
    workers = list(self._workers.values())
    match fault.kind:
      case "all":
        return workers
      case "zone":
        return [w for w in workers if self._zone_of(w.name) == fault.node]
      case "leader":
        leader = self._leader()
        return [w for w in workers if w.name == leader]
    if owner is not None:
      return [w for w in workers if w.number == owner]
    return [w for w in workers if w.name == fault.node]
