"""Injects the faults of a cluster when its workers report that they are due.

Kills are real signals to real processes, timed by this process, which survives.
"""

from collections.abc import Mapping, Sequence
import contextlib
import dataclasses
import math
import os
import random
import signal
import socket
import struct
import threading
import time
from typing import Any

from bamboo_jax import base
from bamboo_jax.base import logs
from bamboo_jax.cluster import frames
from bamboo_jax.faults import faults as faults_lib
from bamboo_jax.local_cluster import machine
from bamboo_jax.net import callers

_PERIOD_SECS = 0.1  # Of the suspensions of a slow worker.
_PAUSE_SECS = 0.1  # After a failed `accept`.
_MAX_STRANGERS = 64  # Connections that have not said whose they are.
# What a person may cause at any time; see `Director.cause`.
ACTIONS = ("kill", "stop", "slow", "notice", "zone", "join")


@dataclasses.dataclass(frozen=True)
class _Worker:
  number: base.NodeId
  name: str
  pid: int


class Director:
  """Listens to the workers, one thread for each, and injects faults.

      worker                      director                    node
        |-- name, number, pid ------>|                          |
        |-- line 7 is due ---------->|  once, for all workers   |
        |                            |-- signal, or notice ---->x
        |<--------- has_joined ----|  of a join: has it joined?

  A report kills processes of this user, so only this user may connect.

  Attributes:
    address: Name of an abstract Unix socket.
    kills: Time of death of each killed node, by number, on `time.perf_counter`.
    pids: Process of the last worker of each node, by name.
    happened: Lines of the faults that have hit a node, and of joins.
    step_secs: Duration of a step, for faults at a random time of it.
  """

  def __init__(self, faults: Sequence[faults_lib.Fault], nodes: machine.LocalCluster) -> None:
    """Prepares to inject `faults` into `nodes`, once `listen` is called."""
    self.kills: dict[base.NodeId, float] = {}
    self.pids: dict[str, int] = {}
    self.happened: set[int] = set()
    self.step_secs = 1.0
    self._faults = {f.line: f for f in faults}
    self._nodes = nodes
    self._num_joins = 0
    self._random = random.Random(0)
    self._workers: dict[int, _Worker] = {}
    self._connections: dict[int, socket.socket] = {}  # To them.
    self._slow: dict[int, float] = {}  # Factors of suspended workers.
    self._is_stopping = False
    self._done: set[int] = set()
    self._names: set[str] = set()  # Of all workers that ever connected.
    self._names_by_join: dict[int, int] = {}  # Number of names from then on.
    self._refusals = logs.Sparing()
    self._strangers = callers.Callers(_MAX_STRANGERS)
    self._lock = threading.RLock()
    self._server = socket.socket(socket.AF_UNIX)
    self._server.bind("")
    self._server.listen()
    self.address = self._server.getsockname().decode().removeprefix("\0")

  def listen(self) -> None:
    """Starts to accept workers, including those that have connected already."""
    threading.Thread(target=self._accept, daemon=True).start()

  def take_joins(self) -> int:
    """Returns the number of nodes to start for joins since the last call.

    The caller starts them, as processes die with the thread that started them.
    """
    with self._lock:
      taken, self._num_joins = self._num_joins, 0
    return taken

  def has_joined(self, name: str) -> bool:
    """Returns whether the worker of a node has ever connected."""
    with self._lock:
      return name in self._names

  def cause(self, kind: str, node: str) -> None:
    """Injects a fault of `ACTIONS` at once; a zone is named as `node`.

    Raises `ValueError` if there is no such fault or no such node.
    """
    if kind not in ACTIONS:
      raise ValueError(base.suggest(kind, ACTIONS, what="action"))
    fault = faults_lib.Fault(1, node, kind=kind)
    if kind == "join":
      with self._lock:
        self._num_joins += 1
    elif not self._do(fault, {}):
      what = "node" if kind == "zone" else "worker"
      where = "in zone" if kind == "zone" else "of node"
      raise ValueError(f"There is no {what} {where} {node!r}.")

  def call_next(self) -> bool:
    """Starts the nodes that join in the next step that has joins.

    Returns False if no joins remain. For a cluster without a live worker, which
    would report that they are due.
    """
    with self._lock:
      joins = [f for f in self._faults.values() if f.kind == "join"]
      left = [f for f in joins if f.line not in self._done]
      first = min((f.step for f in left), default=None)
      for fault in left:
        if fault.step == first:
          self._carry_out({"line": fault.line})
    return first is not None

  def stop(self) -> None:
    """Asks the workers to save the step and end."""
    with self._lock:
      self._is_stopping = True
      for connection in self._connections.values():
        _ask_to_stop(connection)

  def kill_node(self, name: str) -> None:
    """Kills agent and worker of a node, even before it trains."""
    with self._lock:
      # The worker dies with it, even if it has not connected here.
      self._nodes.kill_agent(name)
      for worker in [w for w in self._workers.values() if w.name == name]:
        self._strike(worker, signal.SIGKILL)

  def _accept(self) -> None:
    while True:
      try:
        connection, _ = self._server.accept()
      except OSError as error:  # Such as too many open files.
        self._refusals.warn("Cannot accept connections of workers: %s", error)
        time.sleep(_PAUSE_SECS)
        continue
      if _user(connection) != os.getuid():
        self._refusals.warn("Refused user %d.", _user(connection))
        connection.close()
        continue
      self._strangers.add(connection)
      threading.Thread(target=self._listen, args=(connection,), daemon=True).start()

  def _listen(self, connection: socket.socket) -> None:
    decoder, worker = frames.Decoder(), None
    try:
      while data := connection.recv(1 << 16):
        for message in decoder.feed(data):
          if worker is None:
            worker = _Worker(**message)
            self._strangers.remove(connection)
            with self._lock:
              self._workers[worker.number] = worker
              self._connections[worker.number] = connection
              self._names.add(worker.name)
              self.pids[worker.name] = worker.pid
              if self._is_stopping:
                _ask_to_stop(connection)
            continue
          self._carry_out(message)
          with self._lock:  # Whether it is a join, and its node is here.
            wanted = self._names_by_join.get(message["line"], math.inf)
            has_joined = len(self._names) >= wanted
            connection.sendall(frames.encode({"has_joined": has_joined}))
    except OSError:
      return  # It is dead, as it should be.
    finally:
      if worker is None:
        self._strangers.remove(connection)
        connection.close()
      else:
        with self._lock:
          if self._workers.get(worker.number) is worker:
            del self._workers[worker.number], self._connections[worker.number]
            self._slow.pop(worker.number, None)

  def _carry_out(self, message: Mapping[str, Any]) -> None:
    with self._lock:  # A fault happens once, for all workers.
      if message["line"] in self._done:
        return
      self._done.add(message["line"])
    fault = self._faults[message["line"]]
    if fault.kind == "join":
      with self._lock:
        self.happened.add(fault.line)
        before = max(self._names_by_join.values(), default=len(self._names))
        self._names_by_join[fault.line] = before + 1
        self._num_joins += 1
    elif fault.at is not None:
      self._do(fault, message)
    else:
      delay = self._random.random() * self.step_secs
      threading.Timer(delay, self._do, (fault, message)).start()

  def _do(self, fault: faults_lib.Fault, message: Mapping[str, Any]) -> bool:
    """Injects a fault; returns whether it has hit any worker."""
    with self._lock:
      if fault.kind == "zone":  # Also nodes whose worker starts just now.
        names = self._nodes.find_running(fault.node)
        for name in names:
          self.happened.add(fault.line)
          self.kill_node(name)
        return bool(names)
      victims = self._find_victims(fault, message.get("owner"))
      for worker in victims:
        self.happened.add(fault.line)
        if fault.kind == "notice":
          self._nodes.give_notice(worker.name)
        elif fault.kind == "slow":
          if not fault.line:  # Otherwise its worker knows, and takes longer.
            self._suspend_often(worker, fault.slow.factor)
        elif fault.kind in ("node", "leader"):
          self.kill_node(worker.name)
        else:
          is_stop = fault.kind == "stop"
          self._strike(worker, signal.SIGSTOP if is_stop else signal.SIGKILL)
      return bool(victims)

  def _suspend_often(self, worker: _Worker, factor: float) -> None:
    """Suspends a worker so that it runs 1 / `factor` of the time."""
    is_slow = worker.number in self._slow
    self._slow[worker.number] = factor
    if not is_slow:
      threading.Thread(target=self._alternate, args=(worker,), name="slow", daemon=True).start()

  def _alternate(self, worker: _Worker) -> None:
    while True:
      for number in signal.SIGSTOP, signal.SIGCONT:
        with self._lock:  # Another fault ends it, and may have stopped it.
          if (factor := self._slow.get(worker.number)) is None:
            return
          with contextlib.suppress(ProcessLookupError):  # It has just ended.
            os.kill(worker.pid, number)
        is_stop = number is signal.SIGSTOP
        part = 1 - 1 / factor if is_stop else 1 / factor
        time.sleep(part * _PERIOD_SECS)

  def _strike(self, worker: _Worker, number: signal.Signals) -> None:
    self.kills[worker.number] = time.perf_counter()
    self._slow.pop(worker.number, None)
    with contextlib.suppress(ProcessLookupError):  # It is dead already.
      os.kill(worker.pid, number)

  def _find_victims(self, fault: faults_lib.Fault, owner: int | None) -> list[_Worker]:
    workers = list(self._workers.values())
    if fault.kind == "all":
      return workers
    if owner is not None:
      return [w for w in workers if w.number == owner]
    is_leader = fault.kind == "leader"
    name = self._nodes.leader() if is_leader else fault.node
    return [w for w in workers if w.name == name]


def _ask_to_stop(connection: socket.socket) -> None:
  with contextlib.suppress(OSError):  # That worker is dead.
    connection.sendall(frames.encode({"stop": True}))


def _user(connection: socket.socket) -> int:
  """Returns the user of the process at the other end."""
  process_user_group = struct.Struct("3i")
  found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, process_user_group.size)
  _, user, _ = process_user_group.unpack(found)
  return int(user)
