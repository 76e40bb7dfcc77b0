"""Sums gradients over all shares of the batch, between processes.

The nodes that need a sum cut the flat gradient into as many slices as they are.
Each sends the others their slices of its shares, adds its own slice share by
share in order of their index, and sends the result to the others. So the bits
are those of a sum in one process, whichever node holds a share.

             node 0                node 1
  holds      shares 0 and 2        share 1
  sends      a1, c1 ------------>  <----- b0
  adds       a0 + b0 + c0          a1 + b1 + c1
  sends      s0 ---------------->  <----- s1

A slice travels in pieces, so that sending, adding and receiving overlap. With D
nodes that hold a share each, a node sends 2 (D - 1) / D gradients.
"""

from collections.abc import Mapping, Sequence
import functools
import operator

import jax
import jax.numpy as jnp
import numpy as np

from bamboo_jax import base
from bamboo_jax.runtime.wire import frame as frame_lib, transport as transport_lib

_PIECE = 1 << 18  # Elements of a piece at most.


class OrderedSum:
  """The sum of equal accumulators over all shares, in a fixed order."""

  def __init__(
      self,
      holders: Sequence[base.NodeId],
      others: Sequence[base.NodeId] = (),
      *,
      me: base.NodeId,
      like: base.PyTree,
      device: jax.Device,
  ) -> None:
    """Compiles nothing.

    Args:
      holders: The node of each share, in order of the shares.
      others: Nodes that need the sum and hold no share.
      like: Shapes of an accumulator, float32.
      device: Of the CPU backend. XLA flushes denormal numbers there, which
        numpy does not, so it must add.
    """
    self._holders, self.me, self._device = tuple(holders), me, device
    self._nodes = tuple(dict.fromkeys((*holders, *others)))
    self._like, self._structure = jax.tree.flatten(like)
    bounds = cut(sum(a.size for a in self._like), len(self._nodes))
    self._pieces = {node: pieces(*bounds[i : i + 2]) for i, node in enumerate(self._nodes)}

  def __call__(
      self, exchange: transport_lib.Transport, channel: str, held: Mapping[int, base.PyTree]
  ) -> base.PyTree:
    """Returns the sum as arrays of numpy; all nodes must call it.

    Args:
      channel: Names the sum, the same at all nodes.
      held: The accumulators of the shares of this node, by index.
    """
    me = self._nodes.index(self.me)
    # Each node begins with another, so that none is sent all at once.
    others = [*self._nodes[me + 1 :], *self._nodes[:me]]
    own = {i: self._flatten(tree) for i, tree in held.items()}
    total = self._take()
    rounds = range(max(map(len, self._pieces.values())))
    for place in rounds if own else ():  # Nodes without a share only receive.
      for node in others:
        for first, last in self._pieces[node][place : place + 1]:
          # In order of the shares, as the receiver takes them.
          terms = [own[i][first:last] for i in sorted(own)]
          exchange.send(node, f"{channel} terms", terms)
    for first, last in self._pieces[self.me]:
      got = {
          node: iter(exchange.receive(node, f"{channel} terms"))
          for node in others
          if node in self._holders
      }
      terms = [
          own[i][first:last] if node == self.me else next(got[node])
          for i, node in enumerate(self._holders)
      ]
      total[first:last] = self._add(terms)
      for node in others:
        # Sent in place: each piece of `total` is written once.
        exchange.send(node, f"{channel} sums", [total[first:last]])
    for place in rounds:
      for node in others:
        for first, last in self._pieces[node][place : place + 1]:
          (total[first:last],) = exchange.receive(node, f"{channel} sums")
    return self._unflatten(total)

  def _add(self, terms: Sequence[np.ndarray]) -> np.ndarray:
    size = len(terms[0])
    padded = _padded(size)
    if size < padded:
      terms = [np.pad(term, (0, padded - size)) for term in terms]
    placed = jax.device_put(list(terms), self._device)
    return np.asarray(add(placed))[:size]

  def _take(self) -> np.ndarray:
    size = sum(a.size for a in self._like)
    return frame_lib.empty(size * np.dtype(np.float32).itemsize).view(np.float32)

  def _flatten(self, tree: base.PyTree) -> np.ndarray:
    flat = self._take()
    pairs = zip(self._split(flat), jax.tree.leaves(tree), strict=True)
    for part, leaf in pairs:
      part[:] = np.asarray(leaf).reshape(-1)
    return flat

  def _unflatten(self, flat: np.ndarray) -> base.PyTree:
    pairs = zip(self._split(flat), self._like, strict=True)
    leaves = [part.reshape(a.shape) for part, a in pairs]
    return jax.tree.unflatten(self._structure, leaves)

  def _split(self, flat: np.ndarray) -> list[np.ndarray]:
    """Returns the part of each leaf; none for a unit that is frozen."""
    ends = np.cumsum([a.size for a in self._like], dtype=int)
    return np.split(flat, ends)[:-1]  # Nothing is left after the last end.


def cut(size: int, count: int) -> list[int]:
  """Returns the bounds of `count` slices that differ by one element at most."""
  return [size * i // count for i in range(count + 1)]


def pieces(first: int, last: int) -> list[tuple[int, int]]:
  """Returns the bounds of the pieces in which a slice is sent."""
  starts = range(first, last, _PIECE)
  return [(start, min(start + _PIECE, last)) for start in starts]


def _padded(size: int) -> int:
  """Returns the size that a piece is added in: few programs serve all."""
  return max(16, 1 << (size - 1).bit_length())


def sizes(most: int) -> list[int]:
  """Returns the sizes of programs that add accumulators of at most `most` elements."""
  last = _padded(max(1, min(most, _PIECE)))
  return [size for n in range(last.bit_length()) if 16 <= (size := 1 << n) <= last]


def compile_add(count: int, size: int, device: jax.Device) -> None:
  """Compiles the sum of `count` terms."""
  place = jax.sharding.SingleDeviceSharding(device)
  term = jax.ShapeDtypeStruct((size,), jnp.float32, sharding=place)
  add.lower([term] * count).compile()


@jax.jit
def add(terms: list[base.PyTree]) -> base.PyTree:
  """Returns the sum of trees of one structure, added from left to right."""
  return functools.reduce(functools.partial(jax.tree.map, operator.add), terms)
