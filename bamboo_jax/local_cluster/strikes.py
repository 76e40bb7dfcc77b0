"""Faults of a cluster on this machine: those that victims tell of, and those of buttons.

A fault of a file is carried out by its victims (`training.cohort`), which note
it right before; this process reads that, and starts the nodes that join.

    a victim                records of the run        nodes.jsonl       launcher
      |-- make faults/R/7 ------->|                        |               |
      |<-- its nodes, for all ----|                        |               |
      |-- line 7 hits me ----------------------------------|-- read ------>|
      x                                                    |               |
    a member, for a join
      |-- make faults/R/8 ------->|                        |               |
      |<-- the ticket to wait for |                        |               |
      |-- line 8 calls a node -----------------------------|-- read ------>| starts it, once
"""

from collections.abc import Sequence
import contextlib
import os
import signal
import threading
import time

from bamboo_jax import base
from bamboo_jax.faults import faults as faults_lib
from bamboo_jax.local_cluster import inquiry, machine
from bamboo_jax.metrics import jsonl

_PERIOD_SECS = 0.1  # Of the suspensions of a slow worker.
# What a person may cause at any time; see `Strikes.cause`.
ACTIONS = ("kill", "stop", "slow", "notice", "zone", "join")


class Strikes:
  """Reads which faults have happened, and lets a person cause some.

  Attributes:
    kills: Time of death of each node killed in the present run, by number, on
      `time.perf_counter`.
    dead: Names and numbers of all that were killed; no number if no view has it.
    happened: Lines of the faults that have hit a node, and of joins.
  """

  def __init__(self, faults: Sequence[faults_lib.Fault], cluster: machine.LocalCluster) -> None:
    self.kills: dict[base.NodeId, float] = {}
    self.happened: set[int] = set()
    self.dead: set[tuple[str, base.NodeId | None]] = set()
    self._later_run: base.ViewId | None = None  # Of nodes that came when all had died.
    self._faults, self._cluster = faults, cluster
    self._told = jsonl.NodesReader(cluster.workdir)
    self._num_joins = 0
    self._slow: set[int] = set()  # Processes of workers that are suspended often.
    self._lock = threading.RLock()  # A page causes faults in a thread of its own.

  def read(self) -> None:
    """Learns what victims have told since the last call."""
    for line in self._told.read():
      if line["event"] == jsonl.FAULT:
        if line["kind"] == "join":
          self._call(line["line"])
        elif line["kind"] not in faults_lib.SPARED:
          if line["run"] not in (self._cluster.run, self._later_run):
            self._later_run = line["run"]
            self.kills.clear()  # Numbers count from 0 again.
          self.kills[line["number"]] = line["at_secs"]
          self.dead.add((line["name"], line["number"]))
        self.happened.add(line["line"])

  def take_joins(self) -> int:
    """Returns the number of nodes to start since the last call.

    The caller starts them, as processes die with the thread that started them.
    """
    with self._lock:
      taken, self._num_joins = self._num_joins, 0
    return taken

  def call_next(self) -> bool:
    """Calls the nodes that join in the next step that has joins; False if none does.

    For a cluster without a live worker, which would tell that they are due.
    """
    joins = [f for f in self._faults if f.kind == "join" and f.line not in self.happened]
    first = min((fault.step for fault in joins), default=None)
    for fault in joins:
      if fault.step == first and self._call(fault.line):
        # Nobody waits for it: ticket 0 was drawn at the start.
        run = self._cluster.run
        self._cluster.records.make(f"faults/{run}/{fault.line}", [run, 0])
    return first is not None

  def cause(self, kind: str, node: str) -> None:
    """Carries out a fault of `ACTIONS` at once; a zone is named as `node`.

    Raises `ValueError` if there is no such fault or no such node.
    """
    if kind not in ACTIONS:
      raise ValueError(base.suggest(kind, ACTIONS, what="action"))
    with self._lock:
      if kind == "join":
        self._num_joins += 1
        return
      if kind == "zone":  # Also nodes whose worker starts just now.
        if not (names := self._cluster.find_running(node)):
          raise ValueError(f"There is no node in zone {node!r}.")
        for name in names:
          self.kill_node(name)
        return
      if (pid := inquiry.find_workers(self._cluster.logs).get(node)) is None:
        raise ValueError(f"There is no worker of node {node!r}.")
      if kind == "notice":
        self._cluster.give_notice(node)
      elif kind == "slow":
        if pid not in self._slow:
          self._slow.add(pid)
          threading.Thread(target=self._alternate, args=(pid,), name="slow", daemon=True).start()
      else:
        self._slow.discard(pid)
        self._note_death(node)
        with contextlib.suppress(ProcessLookupError):  # It is dead already.
          os.kill(pid, signal.SIGSTOP if kind == "stop" else signal.SIGKILL)

  def kill_node(self, name: str) -> None:
    """Kills the agent of a node, and its worker with it, even before it trains."""
    self._note_death(name)
    self._cluster.kill_agent(name)

  def _call(self, line: int) -> bool:
    """Counts the node of a join, unless it has been counted."""
    with self._lock:
      is_new = line not in self.happened
      self.happened.add(line)
      self._num_joins += is_new
    return is_new

  def _note_death(self, name: str) -> None:
    self.dead.add((name, number := self._cluster.find_number(name)))
    if number is not None:
      self.kills[number] = time.perf_counter()

  def _alternate(self, pid: int) -> None:
    """Suspends a worker often, so that it runs a part of the time."""
    part = 1 / faults_lib.Fault.factor
    while True:
      for number, secs in (
          (signal.SIGSTOP, (1 - part) * _PERIOD_SECS),
          (signal.SIGCONT, part * _PERIOD_SECS),
      ):
        with self._lock:  # Another fault ends it, and may have stopped it.
          if pid not in self._slow:
            return
          try:
            os.kill(pid, number)
          except ProcessLookupError:  # It has ended.
            self._slow.remove(pid)
            return
        time.sleep(secs)
