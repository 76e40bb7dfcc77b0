"""Ring buffers: values that wait on a device between two ticks.

A buffer is a tree of arrays [slots, ...]; the table of ticks gives the slots,
-1 for none.
"""

from collections.abc import Callable

import flax.struct
import jax
import jax.numpy as jnp

from bamboo_jax import base
from bamboo_jax.runtime.spmd import trees
from bamboo_jax.schedule.ticks import table as ticks_lib


@flax.struct.dataclass
class Kept:
  """Values that the blocks of a stage keep for their backward pass.

  One dimension counts slots and blocks: block `i` in slot `s` is `s * blocks +
  i` of `residuals` and `s * (blocks - 1) + i - 1` of `inputs`.

  Attributes:
    residuals: In the order of JAX, without parameters and inputs, arrays
      [slots * blocks, ...].
    inputs: Inputs of all blocks but the first, arrays [slots * (blocks - 1),
      ...]; None if there are no others.
  """

  residuals: list[jax.Array]
  inputs: base.PyTree


@flax.struct.dataclass
class Buffers:
  """The ring buffers of a device.

  Attributes:
    inputs: Activations received.
    grads: Gradients received.
    outputs: Outputs kept for redundant forward passes; None if there are none.
    kept: What forward passes keep for backward passes.
    output_grads: In the same slots as `kept`, the gradient of the output of the
      blocks; used on the last stage only.
  """

  inputs: base.PyTree
  grads: base.PyTree
  outputs: base.PyTree
  kept: Kept
  output_grads: base.PyTree


def make_buffers(
    table: ticks_lib.TickTable,
    *,
    activation: base.PyTree,
    kept: Callable[[int], Kept],
    has_redundant: bool,
) -> Buffers:
  """Returns empty buffers."""
  slots = lambda count: trees.repeat(activation, count)
  buffers = Buffers(
      inputs=slots(table.num_input_slots),
      grads=slots(table.num_grad_slots),
      outputs=slots(table.num_output_slots) if has_redundant else None,
      kept=kept(table.num_residual_slots),
      output_grads=slots(table.num_residual_slots),
  )
  return trees.zeros_like(buffers)


def read(buffer: base.PyTree, slot: jax.Array) -> base.PyTree:
  """Returns the value in a slot; anything if it is -1."""
  return jax.tree.map(
      lambda a: jax.lax.dynamic_index_in_dim(a, slot, keepdims=False), buffer
  )


def put(
    buffer: base.PyTree, value: base.PyTree, slot: jax.Array
) -> base.PyTree:
  """Returns the buffer with `value` in a slot, which must not be -1."""
  return jax.tree.map(
      lambda a, v: jax.lax.dynamic_update_index_in_dim(a, v, slot, 0),
      buffer,
      value,
  )


def write(
    buffer: base.PyTree, value: base.PyTree, slot: jax.Array
) -> base.PyTree:
  """Returns the buffer with `value` in a slot; unchanged if it is -1."""
  value = jax.tree.map(
      lambda old, new: jnp.where(slot >= 0, new, old), read(buffer, slot), value
  )
  return put(buffer, value, slot)
