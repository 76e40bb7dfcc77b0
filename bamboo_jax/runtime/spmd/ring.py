"""The nodes of a pipeline, which run one program."""

from collections.abc import Sequence

import jax
import numpy as np

from bamboo_jax import base
from bamboo_jax.runtime import devices as devices_lib
from bamboo_jax.runtime.spmd import program as program_lib


class Ring:
  """A ring of nodes and the program that they run.

  Attributes:
    nodes: Along the ring, by number.
    local: Places in the ring of the nodes of this process.
    free: Buffers in host memory that later segments may take.
  """

  def __init__(self, program: program_lib.SegmentProgram, nodes: Sequence[base.NodeId]) -> None:
    self.program, self.nodes = program, tuple(nodes)
    devices = enumerate(program.mesh.devices)
    self.local = [n for n, d in devices if devices_lib.is_local(d)]
    self.free: list[base.PyTree] = []

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
