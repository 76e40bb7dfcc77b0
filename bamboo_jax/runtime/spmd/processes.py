"""A pipeline whose nodes are processes: a child of each worker runs the passes.

A collective that has lost a peer may never end, and cannot be ended; a process
can. So a worker, which holds the state of its node, runs no collective: its
child does. The child ends when a node of the ring has died or a connection was
reset. The next one starts JAX with the nodes that are left, and repeats the
passes of the step. Repairs and joins change the ring in the same way.

     worker                     child                    the other workers
  1.   |<======= do all have a child in the same ring? ==========>|
       |  fork, once the former child is gone                     |
       |--- Topology -----------> | JAX starts; that of the first |
       |                          | node listens, then the others |
       |--- ShareWork, arrays --> | compiles                      |
  2.   |<======= has any child failed? then again from 1 ========>|
       |--- ShareWork, arrays --> | loads                         |
       |--- "connect" ----------> | a segment without passes      |
       |--- "run" --------------> | a segment                     |
       |<------------------ done  |                               |
       |--- "sums" -------------> | sums -> memory                |
  3.   |<======= has any child failed? then again from 1 ========>|

A child that fails ends at once, so that those connected to it fail as well. If
a node dies, the waits of its peers end with the view, and the executor plans
the passes again. JAX's coordinator ends once all have connected: it would end
all children when one dies.
"""

from collections.abc import Callable, Sequence
import contextlib
import dataclasses
from multiprocessing import connection
import os
import pickle
import secrets
import signal
import socket
import threading
import time
from typing import Any

from absl import logging
import jax
import numpy as np

from bamboo_jax import base
from bamboo_jax.net import addresses
from bamboo_jax.runtime import compat
from bamboo_jax.runtime.spmd import (
    buffers as buffers_lib,
    layout as layout_lib,
    pipeline_run as run_lib,
    program as program_lib,
    ticks as ticks_lib,
)
from bamboo_jax.runtime.stage import programs as programs_lib, spec as spec_lib
from bamboo_jax.runtime.wire import transport as transport_lib

_MOST_TRIES = 4  # In a row; then the error ends the run.
_LOOK_SECS, _CALL_SECS = 0.02, 0.005
_CHANNEL = "ring"


class ChildError(RuntimeError):
  """The child of this worker, or of another, has failed."""


@dataclasses.dataclass(frozen=True)
class Topology:
  """The ring of a child; `address` is that of JAX's coordinator."""

  address: str
  rank: int
  size: int


@dataclasses.dataclass(frozen=True)
class RingProgram:
  """A program to compile for a ring of some `size`."""

  layout: layout_lib.BlockLayout
  sizes: program_lib.Sizes
  size: int


@dataclasses.dataclass(frozen=True)
class ShareWork:
  """The passes of one share of the batch; weights and batch are in the memory."""

  owners: tuple[base.NodeId, ...]
  layout: layout_lib.BlockLayout
  sizes: program_lib.Sizes
  table: ticks_lib.TickTable
  numbers: np.ndarray
  step: np.uint32


class SharedMemory:
  """Memory that a worker shares with its children; they take turns."""

  def __init__(self) -> None:
    self.fd = os.memfd_create("passes")

  def write(self, tree: base.PyTree) -> None:
    """Replaces the contents by NumPy copies of some arrays."""
    with open(self.fd, "wb", closefd=False) as file:
      file.seek(0)
      pickle.dump(jax.tree.map(np.asarray, tree), file, protocol=5)

  def read(self) -> base.PyTree:
    with open(self.fd, "rb", closefd=False) as file:
      file.seek(0)
      return pickle.load(file)


class _Process:
  """A forked process at the other end of a socket; it says its number first."""

  def __init__(self, end: socket.socket) -> None:
    self._pipe = connection.Connection(end.detach())
    self._pid: int | None = None
    self._cpu_secs = 0.0

  def tell(self, message: Any) -> None:
    """Sends a message; `hear` awaits the answer."""
    try:
      self._pipe.send(message)
    except OSError as error:
      raise ChildError("the process has ended") from error

  def hear(self, idle: Callable[[], None], busy: Callable[[], None]) -> None:
    """Blocks until it has answered; raises `ChildError` if it has failed.

    Meanwhile calls `busy` if it uses a processor, and else `idle`; both may raise.
    """
    while not self.has_said(_LOOK_SECS):
      before = self._cpu_secs
      with contextlib.suppress(OSError):  # It is gone; the pipe will tell.
        # The clock of a process, as clock_getcpuclockid(3) finds it.
        self._cpu_secs = time.clock_gettime(~(self._pid or 0) << 3 | 2)
      (idle if self._cpu_secs == before else busy)()
    try:
      error = self._pipe.recv()
    except (EOFError, OSError) as closed:
      raise ChildError("the process has ended") from closed
    if error:
      raise ChildError(error)

  def has_said(self, timeout_secs: float) -> bool:
    """Waits for a message, or its end; also takes its number."""
    try:
      if self._pid is None and self._pipe.poll(timeout_secs):
        self._pid = self._pipe.recv()
      return self._pid is not None and self._pipe.poll(timeout_secs)
    except (EOFError, OSError):
      return True

  def close(self) -> None:
    self._pipe.close()


class Compiler:
  """Compiles programs ahead, so that children load them; see `compile_programs`.

  A process of its own has as many devices as the largest ring.
  """

  def __init__(self, fork: Callable[[], socket.socket]) -> None:
    """`fork` returns a socket to a process that calls `compile_programs`."""
    self._fork, self._lock = fork, threading.Lock()
    self._process: _Process | None = None

  def compile(self, program: RingProgram, note_progress: Callable[[], None]) -> None:
    """Compiles a program; blocks. An error is left to the children that need it."""
    with self._lock:
      self._process = self._process or _Process(self._fork())
      try:
        self._process.tell(program)
        self._process.hear(lambda: None, note_progress)
      except ChildError as error:
        logging.warning("A program cannot be compiled ahead: %s", error)
        self._process.close()
        self._process = None


def compile_programs(end: socket.socket, find_whole: Callable[[], spec_lib.StageSpec]) -> None:
  """Compiles the programs that are asked for at `end`, until that is closed."""
  signal.signal(signal.SIGTERM, signal.SIG_IGN)
  pipe = connection.Connection(end.detach())
  pipe.send(os.getpid())
  whole = None
  try:
    while True:
      wanted = pipe.recv()
      whole = whole or find_whole()
      program = _make_program(whole, wanted, jax.devices()[: wanted.size])
      _ = program.segment, program.start
      pipe.send("")
  except (EOFError, ConnectionError):
    return  # The worker is gone.
  except Exception as error:  # The model's code may raise anything.
    logging.exception("A program cannot be compiled.")
    pipe.send(base.describe_error(error))


def _make_program(
    whole: spec_lib.StageSpec, wanted: RingProgram | ShareWork, devices: Sequence[jax.Device]
) -> program_lib.SegmentProgram:
  return program_lib.SegmentProgram(
      *(whole, wanted.layout, wanted.sizes), devices=devices, params=programs_lib.copies_of(whole)
  )


class ProcessRing:
  """The worker's end: its child, and the agreement with the other workers.

  Args:
    number: The node of this worker.
    exchange: Connects it with the others.
    fork: Ends the last child; returns a socket to the next one, which calls
      `live` with the same `memory`.
    host: Address at which other machines reach this one.
    compiler: Compiles programs ahead; None if children cannot load them.
  """

  def __init__(
      self,
      number: base.NodeId,
      exchange: transport_lib.Transport,
      *,
      fork: Callable[[], socket.socket],
      memory: SharedMemory,
      host: str,
      compiler: Compiler | None = None,
  ) -> None:
    self._number, self._exchange, self._host = number, exchange, host
    self._fork, self._memory, self._compiler = fork, memory, compiler
    self._child, self._is_new = _Process(fork()), True
    self._is_connected, self._num_segments = False, 0
    self._nodes: tuple[base.NodeId, ...] = ()
    self._name = ""  # Of the ring, unique.

  def run(
      self,
      nodes: Sequence[base.NodeId],
      compiles: Callable[[], None],
      passes: Callable[[], None],
      *,
      note_progress: Callable[[], None],
  ) -> None:
    """Calls `passes` in a ring of `nodes`, until no child fails; blocks.

    The workers of all `nodes` call it at once.

    Args:
      compiles: Called before, if the children are new: loads a program.
      note_progress: Called while the child works.

    Raises:
      ChildError: The children have failed several times in a row.
      Exception: As `note_progress` or the transport, if a node is lost.
    """
    self._note_progress, nodes = note_progress, tuple(nodes)
    for _ in range(_MOST_TRIES):
      names = self._tell_all(nodes, self._name if self._nodes == nodes else "")
      error = ""
      if len({*names}) > 1 or not names[0]:
        self._replace()
        error = self._agree(nodes, lambda: self._start(nodes, compiles))
      error = error or self._agree(nodes, passes)
      if not error:
        return
      logging.warning("The program of nodes %s starts again: %s", nodes, error)
    raise ChildError(f"The program of nodes {nodes} has failed {_MOST_TRIES} times: {error}")

  def compile_ahead(self, program: RingProgram) -> None:
    """Compiles a program that children will load, if they can; blocks."""
    if self._compiler is not None:
      self._compiler.compile(program, self._exchange.note)

  def progress(self) -> tuple[tuple[base.NodeId, ...], int]:
    """Returns the nodes of its ring, and how many segments it has started there."""
    return self._nodes, self._num_segments

  def load(self, work: ShareWork, arrays: base.PyTree) -> None:
    """Lets the child load the passes of a share and, if needed, compile."""
    self._memory.write(arrays)
    self._ask(work)

  def connect(self) -> None:
    """Lets the child connect to those of the ring, unless it has."""
    if not self._is_connected:
      self._ask("connect")
      self._is_connected = True

  def sums(self) -> base.PyTree:
    """Returns the sums of the passes that the child has run."""
    self._ask("sums")
    return self._memory.read()

  def start_segment(self) -> None:
    """Lets the child run a segment; `hear` awaits its end."""
    self._num_segments += 1
    self._child.tell("run")

  def hear(self) -> None:
    """Blocks until the child has answered; raises `ChildError` if it has failed.

    Raises if a node is lost. Notes progress while the child uses a processor.
    """
    self._child.hear(self._exchange.check, self._note_progress)

  def _ask(self, message: Any) -> None:
    """Sends the child a message, and blocks until it has answered."""
    self._child.tell(message)
    self.hear()

  def _start(self, nodes: tuple[base.NodeId, ...], compiles: Callable[[], None]) -> None:
    """Lets JAX start in the children of all `nodes`: the first one listens."""
    rank, self._is_new, is_ready = nodes.index(self._number), False, False
    if rank:
      name = self._receive(nodes[0])
      if not name:
        raise ChildError("the first process has ended")
      self._child.tell(Topology(name.split()[0], rank, len(nodes)))
    else:
      name = f"{_find_address(self._host)} {secrets.token_hex(8)}"
      try:
        self._child.tell(Topology(name.split()[0], rank, len(nodes)))
        is_ready = self._wait_for_coordinator(name.split()[0])
      except ChildError:
        self._send(nodes[1:], "")
        raise
      self._send(nodes[1:], name)
    if not is_ready:
      self.hear()
    self._nodes, self._name = nodes, name
    compiles()

  def _wait_for_coordinator(self, address: str) -> bool:
    """Blocks until it listens, as a client that calls too early waits for a second.

    Returns whether the child has answered already.
    """
    host, _, port = address.rpartition(":")
    family, place = addresses.find(host.strip("[]"), int(port))
    while not self._child.has_said(_CALL_SECS):
      self._exchange.check()
      with socket.socket(family) as caller:
        if not caller.connect_ex(place):
          return False
    self.hear()
    return True

  def _agree(self, nodes: tuple[base.NodeId, ...], act: Callable[[], None]) -> str:
    """Acts; returns an error of any child of the ring, which ends all of them."""
    error = ""
    try:
      act()
    except ChildError as failure:
      error = f"node {self._number}: {failure}"
      self._replace()
    except BaseException:
      self._replace()
      raise
    error = next(filter(None, self._tell_all(nodes, error)), "")
    if error:
      self._replace()
    return error

  def _tell_all(self, nodes: tuple[base.NodeId, ...], text: str) -> list[str]:
    """Returns the texts of all nodes, in order; blocks."""
    others = [node for node in nodes if node != self._number]
    self._send(others, text)
    return [text if node == self._number else self._receive(node) for node in nodes]

  def _send(self, nodes: Sequence[base.NodeId], text: str) -> None:
    for node in nodes:
      self._exchange.send(node, _CHANNEL, [np.frombuffer(f"-{text}".encode(), np.uint8)])

  def _receive(self, node: base.NodeId) -> str:
    (found,) = self._exchange.receive(node, _CHANNEL)
    return found.tobytes().decode()[1:]

  def _replace(self) -> None:
    """Ends the child, unless it is new, and takes another one."""
    if self._is_new:
      return
    self._child.close()
    self._child, self._is_new = _Process(self._fork()), True
    self._nodes, self._name, self._is_connected, self._num_segments = (), "", False, 0


@dataclasses.dataclass
class ChildRun:
  """The passes of one share of the batch, for a child.

  Attributes:
    program: Has the shapes of the program, for the device of the worker.
    arrays: Weights of this node, and the batch.
  """

  ring: ProcessRing
  program: program_lib.SegmentProgram
  work: ShareWork
  arrays: Sequence[base.PyTree]
  _sums: buffers_lib.MicrobatchSums | None = None

  @property
  def owners(self) -> tuple[base.NodeId, ...]:
    """The node of each stage."""
    return self.work.owners

  @property
  def nodes(self) -> tuple[base.NodeId, ...]:
    """The same nodes once each, along the ring."""
    return tuple(dict.fromkeys(self.work.owners))

  @property
  def is_done(self) -> bool:
    """Whether all segments have been run."""
    return self._sums is not None

  @property
  def table(self) -> ticks_lib.TickTable:
    return self.work.table

  def load(self) -> None:
    """Lets the child load the passes and, if needed, compile."""
    self.ring.load(self.work, self.arrays)

  def run(self, strike: Callable[[Sequence[tuple[ticks_lib.Tick, ...]]], None]) -> None:
    """Runs all segments; calls `strike` with the ticks of each that has been started."""
    self.load()
    self.ring.connect()
    size = self.work.sizes.num_ticks
    for first in range(0, len(self.table.ticks), size):
      self.ring.start_segment()
      strike(self.table.ticks[first : first + size])
      self.ring.hear()
    self._sums = self.ring.sums()

  def sums(self, node: base.NodeId) -> buffers_lib.MicrobatchSums:
    """Returns the sums of the local node, arrays [1, ...]."""
    del node
    assert self._sums is not None, "All segments have been run."
    return self._sums

  def release(self) -> None:
    """Does nothing: the child has what it has left on the host."""


def live(
    end: socket.socket,
    memory: SharedMemory,
    find_whole: Callable[[], spec_lib.StageSpec],
    *,
    host: str,
) -> None:
  """The life of a child; returns once its worker is gone, or after an error.

  Args:
    end: Connected to the worker.
    find_whole: Returns the whole model as one stage; JAX has started by then.
    host: Address at which the children of other machines reach this one.
  """
  signal.signal(signal.SIGTERM, signal.SIG_IGN)  # The worker decides.
  pipe = connection.Connection(end.detach())
  try:
    pipe.send(os.getpid())
    child = _Child(pipe.recv(), memory, host)
    pipe.send("")
    child.whole = find_whole()
    while True:
      child.do(pipe.recv())
      pipe.send("")
  except (EOFError, ConnectionError):
    return  # The worker is gone.
  except Exception as error:  # JAX raises various types.
    logging.exception("The passes have failed.")
    pipe.send(base.describe_error(error))


class _Child:
  """A child that has joined a ring.

  Attributes:
    whole: The whole model as one stage.
  """

  whole: spec_lib.StageSpec

  def __init__(self, topology: Topology, memory: SharedMemory, host: str) -> None:
    compat.use_host_for_collectives(host)
    jax.distributed.initialize(
        *(topology.address, topology.size, topology.rank),
        coordinator_bind_address=topology.address,
        cluster_detection_method="deactivate",
    )
    first = {d.process_index: d for d in reversed(jax.devices())}
    self._devices = [first[rank] for rank in range(topology.size)]
    self._rank, self._memory = topology.rank, memory
    self._programs: dict[str, program_lib.SegmentProgram] = {}

  def do(self, message: Any) -> None:
    match message:
      case ShareWork():
        self._run = self._load(message)
      case "connect":
        self._run.run_idle()
        jax.distributed.shutdown()
      case "run":
        self._run.start()
        self._run.finish()
      case "sums":
        self._memory.write(self._run.sums(self._run.nodes[self._rank]))

  def _load(self, work: ShareWork) -> run_lib.PipelineRun:
    key = str(work.sizes)
    if key not in self._programs:
      self._programs[key] = _make_program(self.whole, work, self._devices)
    program = self._programs[key]
    _ = program.segment, program.start
    inputs = [program.put({self._rank: part}) for part in self._memory.read()]
    inputs += [work.numbers, work.step]
    return run_lib.PipelineRun(
        program, work.table, inputs, owners=work.owners, share=base.ShareId(0)
    )


def _find_address(host: str) -> str:
  """Returns an address of `host` at which nobody listens."""
  family, place = addresses.find(host, 0)
  with socket.socket(family) as listener:
    listener.bind(place)
    number, port = listener.getsockname()[:2]
  return addresses.render(number, port)
