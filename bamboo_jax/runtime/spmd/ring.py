"""The nodes of a pipeline, which run one program in one process or in many.

A segment is a transfer in which the whole ring takes part. If one of its nodes
dies, the connections of the others are cut, and their programs raise. If a node
is stopped before it begins a segment, it must `answer`, and the others discard
the results of the segment.
"""

from collections.abc import Callable, Sequence

import jax
import numpy as np

from bamboo_jax import base
from bamboo_jax.runtime import devices as devices_lib, engine as engine_lib
from bamboo_jax.runtime.spmd import program as program_lib
from bamboo_jax.runtime.spmd.processes import transfer_log
from bamboo_jax.runtime.spmd.ticks import tick_table as table_lib
from bamboo_jax.schedule import channel as channel_lib


def most_behind(program: program_lib.SegmentProgram) -> int:
  """Returns the largest lag between two nodes of a ring, in segments.

  A node receives in each tick a value that its neighbour sent in this tick. So
  the lag grows by a tick per node, up to half way around the ring.
  """
  if not program.sizes.keeps:
    return 0  # Without replicas nothing is rewound.
  return -(-(program.mesh.size // 2) // program.sizes.num_ticks)


class Ring:
  """A ring of nodes and the program that they run.

  Attributes:
    nodes: Along the ring, by number.
    local: Places in the ring of the nodes of this process.
    most_behind: Largest lag of other processes, in segments.
    free: Buffers in host memory that later segments may take.
  """

  def __init__(
      self,
      rows: engine_lib.Engine,
      program: program_lib.SegmentProgram,
      nodes: Sequence[base.NodeId],
      *,
      kind: int,
      log: transfer_log.TransferLog | None,
  ) -> None:
    """Makes a ring.

    Args:
      kind: Tells programs of the same nodes apart.
      log: Records transfers with other processes; None without.
    """
    self._rows, self.program, self._log = rows, program, log
    self.nodes = tuple(nodes)
    devices = enumerate(program.mesh.devices)
    self.local = [n for n, d in devices if devices_lib.is_local(d)]
    self._is_shared = len(self.local) < len(self.nodes)
    self.most_behind = most_behind(program) if self._is_shared else 0
    self._channel = channel_lib.Channel("ring", self.nodes, (kind,))
    self.free: list[base.PyTree] = []

  def run(self, *arguments: base.PyTree) -> base.PyTree:
    """Starts a segment; the first one of a ring over many processes blocks.

    Raises if a process is gone, or transfers are stopped.
    """
    call = lambda: self.program.segment(*arguments)
    if not self._is_shared:
      return call()
    assert self._log is not None, "A ring of one process needs none."
    self._log.begin(self._channel)
    return self._log.run(self._channel, call)

  def answer(self) -> None:
    """Ends a segment that other processes have begun; blocks."""
    program, zeros = self.program, self.zeros
    numbers = np.zeros((program.sizes.num_microbatches,), np.uint32)
    # No passes, and nothing arrives.
    idle = np.full((program.sizes.num_ticks, table_lib.NUM_FIELDS), -1)
    arguments = (
        *(zeros(program.weights), zeros(program.batch)),
        *(numbers, np.uint32(0)),
        program.put(dict.fromkeys(self.local, idle[None].astype(np.int32))),
        program.start(),
        zeros(program.fetched, kind="pinned_host"),
        zeros(program.host, kind="pinned_host"),
    )
    assert self._log is not None, "A ring of one process needs none."
    self._log.answer(self._channel)
    call = lambda: program.segment(*arguments)
    jax.block_until_ready(self._log.run(self._channel, call))

  def move(
      self, channel: channel_lib.Channel, find: Callable[[], base.PyTree]
  ) -> base.PyTree | None:
    """Sends a value from one node to another; None on other nodes.

    All nodes must call it in the same order; `find` returns the value on its
    source.
    """
    (source, to), nodes = channel.nodes, self._rows.nodes
    if not nodes.keys() & channel.nodes:
      return None
    if source == to:
      return find()
    link = self._rows.links.get(channel)
    if source in nodes:
      link.send(jax.device_put(find(), nodes[source].device))
    return link.receive() if to in nodes else None

  def take_host(self) -> base.PyTree:
    """Returns buffers in host memory for a segment, which consumes them."""
    if self.free:
      return self.free.pop()
    return self.zeros(self.program.host, kind="pinned_host")

  def zeros(self, shapes: base.PyTree, *, kind: str | None = None) -> base.PyTree:
    """Returns global arrays of zeros, from the shapes of one device."""
    return self.program.put(dict.fromkeys(self.local, host_zeros(shapes)), kind=kind)


def host_zeros(shapes: base.PyTree) -> base.PyTree:
  """Returns NumPy arrays [1, ...] for the shapes of one device."""
  return jax.tree.map(lambda a: np.zeros((1, *a.shape), a.dtype), shapes)
