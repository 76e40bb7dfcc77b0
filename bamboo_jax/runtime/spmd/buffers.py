"""The arrays that a device keeps between two ticks, and their slots.

A buffer is a tree of arrays [slots, ...]; the table of ticks gives the slots,
-1 for none.
"""

import flax.struct
import jax
import jax.numpy as jnp

from bamboo_jax import base
from bamboo_jax.runtime.stage import spec as spec_lib

Slot = int | jax.Array  # Of a buffer; mostly traced.


class Kept(flax.struct.PyTreeNode):
  """Values that forward passes keep for backward passes: arrays [slots, ...].

  Attributes:
    saved: `spec.Saved` of each block, arrays [slots, blocks, ...].
    inputs: Of each block, arrays [slots, blocks, ...].
    outputs: Output of the last block, which the epilogue reads.
  """

  saved: spec_lib.Saved
  inputs: base.PyTree
  outputs: base.PyTree


class MicrobatchSums(flax.struct.PyTreeNode):
  """Sums over the microbatches of a share, on one device, by position of the layer.

  Attributes:
    blocks: Of the layers of a block, arrays [stages of the node, blocks, ...].
    prologue: Of the layers before the blocks.
    epilogue: Of those behind them.
  """

  blocks: spec_lib.Accumulator
  prologue: spec_lib.Accumulator
  epilogue: spec_lib.Accumulator


class Carry(flax.struct.PyTreeNode):
  """The buffers that a scan carries from tick to tick.

  Attributes:
    activations: Inputs of forward passes, received or local.
    grads: Gradients of outputs, received or local.
  """

  activations: base.PyTree
  grads: base.PyTree
  kept: Kept
  sums: MicrobatchSums


def read(buffer: base.PyTree, *slots: Slot) -> base.PyTree:
  """Returns the value in a slot; undefined if it is -1."""

  def take(array: jax.Array) -> jax.Array:
    start: tuple[Slot, ...] = (*slots, *[0] * (array.ndim - len(slots)))
    sizes = (*[1] * len(slots), *array.shape[len(slots) :])
    part = jax.lax.dynamic_slice(array, start, sizes)
    return part.reshape(array.shape[len(slots) :])

  return jax.tree.map(take, buffer)


def put(buffer: base.PyTree, value: base.PyTree, *slots: Slot) -> base.PyTree:
  """Returns the buffer with `value` in a slot, which must not be -1."""

  def update(array: jax.Array, part: jax.Array) -> jax.Array:
    start: tuple[Slot, ...] = (*slots, *[0] * (array.ndim - len(slots)))
    part = jnp.expand_dims(part, tuple(range(len(slots))))
    return jax.lax.dynamic_update_slice(array, part, start)

  return jax.tree.map(update, buffer, value)


def write(buffer: base.PyTree, value: base.PyTree, slot: Slot) -> base.PyTree:
  """Returns the buffer with `value` in a slot; unchanged if it is -1."""
  value = jax.tree.map(lambda old, new: jnp.where(slot >= 0, new, old), read(buffer, slot), value)
  return put(buffer, value, slot)  # With -1 some slot gets its own value again.


def zeros_like(shapes: base.PyTree) -> base.PyTree:
  """Returns zeros of these shapes."""
  return jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes)


def repeat(shapes: base.PyTree, *counts: int) -> base.PyTree:
  """Returns shapes with more leading dimensions."""
  return jax.tree.map(lambda a: jax.ShapeDtypeStruct((*counts, *a.shape), a.dtype), shapes)
