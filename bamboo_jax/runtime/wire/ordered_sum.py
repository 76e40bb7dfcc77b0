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
import numpy as np

from bamboo_jax import base
from bamboo_jax.runtime.wire import protocol as protocol_lib, transport as transport_lib
from bamboo_jax.schedule import channel as channel_lib

_PIECE = 1 << 18  # Elements of a piece at most.


def ordered_sum(
    exchange: transport_lib.Transport,
    channel: channel_lib.Channel,
    held: Mapping[int, base.PyTree],
    *,
    num_shares: int,
    like: base.PyTree,
) -> base.PyTree:
  """Returns the sum of equal accumulators as arrays of numpy; all nodes must call it.

  Args:
    channel: The same at all nodes. Its nodes are that of each share, in order of
      the shares; then those that need the sum and hold no share.
    held: The accumulators of the shares of this node, by index.
    like: Shapes of an accumulator, float32.
  """
  holders, all_nodes = channel.nodes[:num_shares], [*dict.fromkeys(channel.nodes)]
  shapes, structure = jax.tree.flatten(like)
  counts = [a.size for a in shapes]
  me = all_nodes.index(exchange.me)
  # Each node begins with another, so that none is sent all at once.
  others = [*all_nodes[me + 1 :], *all_nodes[:me]]
  make_flat = lambda: protocol_lib.empty(4 * sum(counts)).view(np.float32)

  def flatten(tree: base.PyTree) -> np.ndarray:
    flat = make_flat()  # Without a leaf, of a unit that is frozen, it is empty.
    leaves = [np.asarray(leaf).reshape(-1) for leaf in jax.tree.leaves(tree)]
    return np.concatenate([flat[:0], *leaves], out=flat)

  own = {i: cut(flatten(held[i]), all_nodes) for i in sorted(held)}
  total = make_flat()
  sums = cut(total, all_nodes)
  rounds = range(max(map(len, sums.values())))
  for place in rounds if own else ():  # Nodes without a share only receive.
    for node in others:
      # In order of the shares, as the receiver takes them.
      if terms := [piece for flat in own.values() for piece in flat[node][place : place + 1]]:
        exchange.send(node, f"{channel} terms", terms)
  for place, piece in enumerate(sums[exchange.me]):
    got = {
        node: iter(exchange.receive(node, f"{channel} terms")) for node in others if node in holders
    }
    mine = {i: flat[exchange.me][place] for i, flat in own.items()}
    piece[:] = _add([mine[i] if i in mine else next(got[n]) for i, n in enumerate(holders)])
    for node in others:
      # Sent in place: each piece of `total` is written once.
      exchange.send(node, f"{channel} sums", [piece])
  for place in rounds:
    for node in others:
      for piece in sums[node][place : place + 1]:
        (piece[:],) = exchange.receive(node, f"{channel} sums")
  parts = np.split(total, np.cumsum(counts)[:-1])
  leaves = [part.reshape(a.shape) for part, a in zip(parts, shapes, strict=False)]
  return jax.tree.unflatten(structure, leaves)


def _add(terms: Sequence[np.ndarray]) -> np.ndarray:
  """Adds on the CPU backend: XLA flushes denormal numbers there, which numpy does not."""
  size, device = len(terms[0]), jax.local_devices(backend="cpu")[0]
  padded = _padded(size)
  if size < padded:
    terms = [np.pad(term, (0, padded - size)) for term in terms]
  return np.asarray(add(jax.device_put(list(terms), device)))[:size]


def cut(flat: np.ndarray, nodes: Sequence[base.NodeId]) -> dict[base.NodeId, list[np.ndarray]]:
  """Returns the slice of each node, in the pieces in which it is sent; views."""
  slices = zip(nodes, np.array_split(flat, len(nodes)), strict=True)
  return {n: [own[i : i + _PIECE] for i in range(0, own.size, _PIECE)] for n, own in slices}


def _padded(size: int) -> int:
  """Returns the size that a piece is added in: few programs serve all."""
  return max(16, 1 << (size - 1).bit_length())


def sizes(most: int) -> list[int]:
  """Returns the sizes of programs that add accumulators of at most `most` elements."""
  last = _padded(max(1, min(most, _PIECE)))
  return [size for n in range(last.bit_length()) if 16 <= (size := 1 << n) <= last]


@jax.jit
def add(terms: list[base.PyTree]) -> base.PyTree:
  """Returns the sum of trees of one structure, added from left to right."""
  return functools.reduce(functools.partial(jax.tree.map, operator.add), terms)
