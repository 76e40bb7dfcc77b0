"""A pipeline whose nodes are processes: a child of each worker runs the passes.

A collective that has lost a peer may never end, and cannot be ended; a process
can. So a worker, which holds the state of its node, runs no collective: its
child does. After a death or a reset connection the worker takes what the child
has left, and ends it. The next one starts JAX with the nodes that are left.
Repairs and joins change the ring in the same way.

     worker                     child                    the other workers
  1.   |<======= do all have a child in the same ring? ==========>|
       |  fork, once the former child is gone                     |
       |--- join ---------------> | JAX starts; that of the first |
       |                          | node listens, then the others |
       |--- load, arrays -------> | compiles, loads               |
  2.   |<======= has any child failed? then again from 1 ========>|
       |--- connect ------------> | runs a segment without passes |
       |<======= the same =======================================>|
       |--- run ----------------> | runs a segment                |
       |<------------------ done  |                               |
       |--- read ---------------> | sums -> memory                |
  3.   |<======= has any child failed? then again from 1 ========>|

If a node dies, the waits of its peers end with the view. Then each worker reads
all that finished segments have left, by a second thread of the child, as the
first may be in a collective forever; and the executor plans the rest of the
step. A child that fails is ended by its worker, so that those connected to it fail
as well; if no node has died, they repeat the passes from where they began. JAX's
coordinator ends once all have connected: it would end all children when one
dies.
"""

from collections.abc import Callable, Sequence
import contextlib
import functools
from multiprocessing import connection
import os
import pickle
import queue
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
    layout as layout_lib,
    passes as passes_lib,
    program as program_lib,
    ticks as ticks_lib,
)
from bamboo_jax.runtime.stage import spec as spec_lib
from bamboo_jax.runtime.wire import transport as transport_lib

_MOST_TRIES = 4  # In a row; then the error ends the run.
_LOOK_SECS, _CALL_SECS = 0.02, 0.005
_STUCK_SECS = 10.0  # Without work, of a child that should say what it has.
_CHANNEL = "ring"


class ChildError(RuntimeError):
  """The child of this worker, or of another, has failed."""


class SharedMemory:
  """Memory that a worker shares with its children.

  They take turns, but for a child that is about to be replaced: what one writes while the
  other reads is lost, so a reader must expect any error.
  """

  def __init__(self) -> None:
    self.fd = os.memfd_create("passes")
    # Read and written by path: a forked process shares the position of an open file.
    self._path = f"/proc/self/fd/{self.fd}"

  def write(self, tree: base.PyTree) -> None:
    """Replaces the contents by NumPy copies of some arrays."""
    with open(self._path, "r+b") as file:
      pickle.dump(jax.tree.map(np.asarray, tree), file, protocol=5)

  def read(self) -> base.PyTree:
    with open(self._path, "rb") as file:
      return pickle.load(file)


class _Process:
  """A forked process at the other end of a socket; it says its number first."""

  def __init__(self, end: socket.socket) -> None:
    self._pipe = connection.Connection(end.detach())
    self._pid: int | None = None
    self._cpu_secs, self._number, self._heard = 0.0, 0, 0

  def tell(self, name: str, *args: Any) -> None:
    """Calls a method of the other `_Child`; `hear` awaits its end."""
    self._number += 1
    try:
      self._pipe.send((self._number, name, args))
    except OSError as error:
      raise ChildError("the process has ended") from error

  def hear(self, idle: Callable[[], None], busy: Callable[[], None]) -> None:
    """Blocks until it has answered, unless it has; raises `ChildError` if it has failed.

    Meanwhile calls `busy` if it uses a processor, and else `idle`; both may raise.
    """
    error = ""
    while self._heard < self._number:  # Nobody has awaited the answers before.
      while not self.has_said(_LOOK_SECS):
        before = self._cpu_secs
        with contextlib.suppress(OSError):  # It is gone; the pipe will tell.
          # The clock of a process, as clock_getcpuclockid(3) finds it.
          self._cpu_secs = time.clock_gettime(~(self._pid or 0) << 3 | 2)
        (idle if self._cpu_secs == before else busy)()
      try:
        self._heard, error = self._pipe.recv()
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


class ProcessRing:
  """The worker's end: its child, and the agreement with the other workers.

  Attributes:
    child: The present child.
    memory: Shared with it.
    segments: Those of this step, which save what a child has left before it is replaced.
    running: The nodes whose programs run now, with its own; () between two runs.
    num_starts: How often a child has joined a ring.

  Args:
    number: The node of this worker.
    exchange: Connects it with the others.
    fork: Ends the last child; returns a socket to the next one, which calls
      `live` with the same `memory`.
    host: Address at which other machines reach this one.
    fork_compiler: Returns a socket to a child in no ring, with as many devices as the
      largest one, which compiles programs ahead; None if children cannot load them.
  """

  def __init__(
      self,
      number: base.NodeId,
      exchange: transport_lib.Transport,
      *,
      fork: Callable[[], socket.socket],
      memory: SharedMemory,
      host: str,
      fork_compiler: Callable[[], socket.socket] | None = None,
  ) -> None:
    self._number, self._exchange, self._host = number, exchange, host
    self._fork, self._fork_compiler, self.memory = fork, fork_compiler, memory
    self.child, self._is_new = _Process(fork()), True
    self._compiler: _Process | None = None
    self._lock = threading.Lock()  # Of the compiler.
    self.running: tuple[base.NodeId, ...] = ()
    self.num_starts = 0
    self._nodes: tuple[base.NodeId, ...] = ()
    self._name = ""  # Of the ring, unique.
    self.segments: list[ChildSegments] = []
    self._said: dict[base.NodeId, str] = {}  # By nodes that have acted before this one.

  def run(
      self,
      nodes: tuple[base.NodeId, ...],
      run: Callable[[], None],
      *,
      note_progress: Callable[[], None],
  ) -> None:
    """Loads `segments` and calls `run` in a ring of `nodes`, until no child fails; blocks.

    The workers of all `nodes` call it at once.

    Args:
      note_progress: Called while the child works.

    Raises:
      ChildError: The children have failed several times in a row.
      Exception: As `note_progress` or the transport, if a node is lost.
    """
    self._note_progress, self.running, self._said = note_progress, nodes, {}
    try:
      for _ in range(_MOST_TRIES):
        names = self._tell_all(nodes, self._name if self._nodes == nodes else "")
        error = ""
        if len({*names}) > 1 or not names[0]:
          self._replace()
          error = self._agree(nodes, lambda: self._start(nodes), self._load)
          error = error or self._agree(nodes, lambda: self.call("connect"))
        error = error or self._agree(nodes, self._load, run)
        if not error:
          return
        logging.warning("The program of nodes %s starts again: %s", nodes, error)
      raise ChildError(f"The program of nodes {nodes} has failed {_MOST_TRIES} times: {error}")
    except BaseException:
      self._nodes = ()  # Never again: the others may be in another segment.
      raise
    finally:
      self.running = ()

  def compile_ahead(self, *program: Any) -> None:
    """Compiles a program that children will load, if they can; blocks.

    Its arguments are those of `_Child.compile`. An error is left to the children that need it.
    """
    if self._fork_compiler is None:
      return
    with self._lock:
      self._compiler = self._compiler or _Process(self._fork_compiler())
      try:
        self._compiler.tell("compile", *program)
        self._compiler.hear(lambda: None, self._exchange.note)
      except ChildError as error:
        logging.warning("A program cannot be compiled ahead: %s", error)
        self._compiler.close()
        self._compiler = None

  def call(self, name: str, *args: Any) -> None:
    """Calls a method of the child's `_Child`; blocks, and raises as `hear`."""
    self.child.tell(name, *args)
    self.hear()

  def hear(self) -> None:
    """Blocks until the child has answered; raises `ChildError` if any in the ring has failed.

    Raises if a node is lost. Notes progress while the child uses a processor.
    """

    def note() -> None:
      self._note_progress()
      self._check_others()

    self.child.hear(self._check_others, note)

  def _check_others(self) -> None:
    """Raises if a node is lost, or has a child that failed: this child may wait for it forever."""
    self._exchange.check()
    for node in self.running:
      is_new = node not in {self._number, *self._said}
      if is_new and self._exchange.wait(node, _CHANNEL, 0.0):
        self._said[node] = self._receive(node)
        if self._said[node]:
          raise ChildError(self._said[node])

  def _start(self, nodes: tuple[base.NodeId, ...]) -> None:
    """Lets JAX start in the children of all `nodes`: the first one listens."""
    rank, self._is_new = nodes.index(self._number), False
    self.num_starts += 1
    if rank:
      name = self._receive(nodes[0])
      if not name:
        raise ChildError("the first process has ended")
      self.child.tell("join", name.split()[0], rank, len(nodes))
    else:
      name = f"{_find_address(self._host)} {secrets.token_hex(8)}"
      try:
        self.child.tell("join", name.split()[0], rank, len(nodes))
        self._wait_for_coordinator(name.split()[0])
      except ChildError:
        self._send(nodes[1:], "")
        raise
      self._send(nodes[1:], name)
    self.hear()
    self._nodes, self._name = nodes, name

  def _load(self) -> None:
    for one in self.segments:
      one.load()

  def _wait_for_coordinator(self, address: str) -> None:
    """Blocks until it listens, as a client that calls too early waits for a second."""
    host, _, port = address.rpartition(":")
    family, place = addresses.find(host.strip("[]"), int(port))
    while not self.child.has_said(_CALL_SECS):
      self._exchange.check()
      with socket.socket(family) as caller:
        if not caller.connect_ex(place):
          return
    self.hear()

  def _agree(self, nodes: tuple[base.NodeId, ...], *acts: Callable[[], None]) -> str:
    """Acts; returns an error of any child of the ring, which ends all of them."""
    error = ""
    try:
      for act in acts:
        act()
    except ChildError as failure:
      own = f"node {self._number}: {failure}"
      error = next(filter(None, self._said.values()), own)
      self._replace()
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
    if node in self._said:
      return self._said.pop(node)
    (found,) = self._exchange.receive(node, _CHANNEL)
    return found.tobytes().decode()[1:]

  def _replace(self) -> None:
    """Ends the child, unless it is new, and takes another one."""
    if self._is_new:
      return
    for one in self.segments:
      one.save()
    self.child.close()
    self.child, self._is_new, self._nodes = _Process(self._fork()), True, ()


class ChildSegments:
  """Segments that a child runs; see `program.LocalSegments`.

  Args:
    work: Arguments of `_Child.load`; the third is the share.
    arrays: Those of `program.LocalSegments`.
  """

  def __init__(self, ring: ProcessRing, work: Sequence[Any], arrays: Sequence[Any]) -> None:
    self.num_segments = 0
    self._ring, self._work, self._arrays, self._share = ring, work, arrays, work[2]
    (rows,) = arrays[1].values()
    self._num_all = len(rows)
    self._child: _Process | None = None  # Which has loaded it.
    self._left: program_lib.Left | None = None
    self._sums: passes_lib.Parts | None = None  # Of all segments.
    ring.segments.append(self)

  def load(self) -> None:
    """Lets the child load the passes, unless it has; also compiles, if it is new."""
    ring = self._ring
    if self._child is not ring.child:
      ring.memory.write(self._arrays)
      ring.call("load", *self._work)
      self._child, self.num_segments, self._sums = ring.child, 0, None

  def start(self) -> None:
    self._ring.child.tell("run", self._share)

  def finish(self, *, is_lost: bool) -> None:
    del is_lost  # Then `ProcessRing` raises.
    ring = self._ring
    ring.hear()
    self.num_segments += 1
    if self.num_segments == self._num_all:
      ring.call("read", self._share, True)
      self._sums = ring.memory.read()

  @property
  def num_summed(self) -> int:
    """Number of segments that are in `sums`: all once they are finished, whatever is left."""
    if self._sums is not None:
      return self._num_all
    return len(self._left.host) if self._left else 0

  def sums(self, n: int) -> passes_lib.Parts | None:
    del n
    return self._left.carry.sums if self._sums is None and self._left else self._sums

  def read(self, n: int) -> program_lib.Left | None:
    """Returns the results of finished segments; None without any.

    They are those of the last child that ran some. Waits for the child, but not for a
    segment that is under way, or for other nodes.
    """
    del n
    self.save()
    return self._left

  def save(self) -> None:
    """Takes the results of finished segments, if the present child has some."""
    ring, since_secs = self._ring, time.monotonic()

    def wait() -> None:
      if time.monotonic() > since_secs + _STUCK_SECS:
        raise ChildError("the process is stuck")

    if self.num_segments and self._child is ring.child:
      try:
        ring.child.tell("read", self._share, False)
        ring.child.hear(wait, lambda: None)
        self._left = ring.memory.read()
      except ChildError as error:
        logging.warning("Nothing is left of share %d: %s", self._share, error)
      except (pickle.UnpicklingError, EOFError, ValueError, TypeError) as error:
        logging.warning("What is left of share %d was overwritten: %s", self._share, error)

  def release(self) -> None:
    """Does nothing: the child does when it loads another step."""


def live(
    end: socket.socket,
    memory: SharedMemory,
    find_whole: Callable[[], spec_lib.StageSpec],
    *,
    host: str,
) -> None:
  """The life of a child; returns once its worker is gone.

  Args:
    end: Connected to the worker.
    find_whole: Returns the whole model as one stage; JAX has started by then.
    host: Address at which the children of other machines reach this one.
  """
  signal.signal(signal.SIGTERM, signal.SIG_IGN)  # The worker decides.
  pipe, lock = connection.Connection(end.detach()), threading.Lock()
  child = _Child(memory, host, find_whole)
  inbox = queue.SimpleQueue[Any]()

  def do(number: int, name: str, args: Sequence[Any]) -> None:
    error = ""
    try:
      getattr(child, name)(*args)
    except Exception as failure:  # JAX raises various types.
      logging.exception("The passes have failed.")
      error = base.describe_error(failure)
    with lock, contextlib.suppress(OSError):
      pipe.send((number, error))

  def listen() -> None:
    try:
      while True:
        said = pipe.recv()
        if said[1] == "read":  # The other thread may be in a collective.
          do(*said)
        else:
          inbox.put(said)
    except (EOFError, OSError):
      inbox.put(None)  # The worker is gone.

  pipe.send(os.getpid())
  threading.Thread(target=listen, daemon=True).start()
  while said := inbox.get():
    do(*said)


class _Child:
  """A child, which joins one ring, or compiles programs for others."""

  def __init__(
      self, memory: SharedMemory, host: str, find_whole: Callable[[], spec_lib.StageSpec]
  ) -> None:
    self._memory, self._host, self._find_whole = memory, host, functools.cache(find_whole)
    self._devices: list[jax.Device] = []  # Of its ring.
    self._passes: passes_lib.StagePasses | None = None
    self._programs: dict[str, program_lib.SegmentProgram] = {}
    self._step: base.StepId | None = None
    self._runs: dict[base.ShareId, program_lib.LocalSegments] = {}

  def compile(
      self, layout: layout_lib.BlockLayout, sizes: ticks_lib.Sizes, num_nodes: int
  ) -> program_lib.SegmentProgram:
    """Compiles the program of a ring of some nodes, unless it has."""
    if self._passes is None:
      self._passes = passes_lib.StagePasses(self._find_whole(), layout)
    key = f"{sizes} {num_nodes}"
    if key not in self._programs:
      devices = self._devices or jax.devices()[:num_nodes]
      self._programs[key] = program_lib.SegmentProgram(self._passes, sizes, devices)
    _ = self._programs[key].segment, self._programs[key].start
    return self._programs[key]

  def join(self, address: str, rank: int, size: int) -> None:
    """Starts JAX in a ring, with its coordinator at an address."""
    compat.use_host_for_collectives(self._host)
    jax.distributed.initialize(
        *(address, size, rank),
        coordinator_bind_address=address,
        cluster_detection_method="deactivate",
    )
    first = {d.process_index: d for d in reversed(jax.devices())}
    self._devices, self._rank = [first[rank] for rank in range(size)], rank
    self._find_whole()  # Before the first passes.

  def load(
      self,
      layout: layout_lib.BlockLayout,
      sizes: ticks_lib.Sizes,
      share: base.ShareId,
      step: base.StepId,
  ) -> None:
    """Loads the passes of a share; the memory has the arrays of `LocalSegments`."""
    if step != self._step:
      for run in self._runs.values():
        run.release()
      self._step, self._runs = step, {}
    program = self.compile(layout, sizes, len(self._devices))
    self._runs[share] = program_lib.LocalSegments(program, *self._memory.read())

  def connect(self) -> None:
    """Connects the children of the ring, which have all loaded passes of the same shares."""
    self._runs[min(self._runs)].run_idle()
    jax.distributed.shutdown()

  def run(self, share: base.ShareId) -> None:
    """Runs a segment of a share."""
    run = self._runs[share]
    run.start()
    run.finish(is_lost=False)

  def read(self, share: base.ShareId, only_sums: bool) -> None:
    """Copies the sums of a share to the memory, or else all that is left of it."""
    run, n = self._runs[share], self._rank
    self._memory.write(run.sums(n) if only_sums else run.read(n))


def _find_address(host: str) -> str:
  """Returns an address of `host` at which nobody listens."""
  family, place = addresses.find(host, 0)
  with socket.socket(family) as listener:
    listener.bind(place)
    number, port = listener.getsockname()[:2]
  return addresses.render(number, port)
