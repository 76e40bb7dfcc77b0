"""The forward and the backward pass of the blocks of a stage.

The derivative of each block is taken by itself, and what it keeps is explicit:
residuals without parameters, and its input. So a stage can be shorter than
others, and a pass can be compiled once for all blocks.
"""

import jax
import jax.numpy as jnp

from bamboo_jax import base
from bamboo_jax.runtime import compat
from bamboo_jax.runtime.spmd import buffers as buffers_lib
from bamboo_jax.runtime.spmd import layout as layout_lib
from bamboo_jax.runtime.spmd import trees
from bamboo_jax.runtime.stage import spec as spec_lib

Block = list[spec_lib.LayerState]


class BlockPasses:
  """The passes of the blocks of any stage, which may be traced.

  `spec` is the whole model as one stage.
  """

  def __init__(
      self, spec: spec_lib.StageSpec, layout: layout_lib.Layout
  ) -> None:
    self._spec = spec
    self._layout = layout
    self._vjp: compat.VjpSkeleton | None = None  # Of one block.

  def forward(
      self,
      blocks: Block,
      inputs: base.PyTree,
      batch: base.PyTree,
      key: jax.Array,
      kept: buffers_lib.Kept,
      *,
      stage: jax.Array,
      slot: jax.Array,
      space: jax.memory.Space = jax.memory.Space.Device,
  ) -> tuple[base.PyTree, buffers_lib.Kept, list[base.PyTree]]:
    """Runs the blocks of a stage.

    Every block stands in a branch of its own, which one that only pads the
    stage does not take. What stands there is compiled alike wherever it is
    called from, so that redundant forward passes give the same bits.

    Args:
      blocks: State of their layers, arrays [blocks, ...].
      inputs: What `enter` returned.
      kept: Where to store what is kept; changed in place.

    Returns:
      The output, `kept`, and statistics, arrays [blocks, ...], zero for
      padding.
    """
    count = jnp.asarray(self._layout.counts)[stage]
    first = jnp.asarray(self._layout.first_layers)[stage]
    num_blocks = self._layout.max_count
    put = lambda buffer, value, slot: buffers_lib.put(
        buffer, jax.device_put(value, space), slot
    )

    def run(
        carry: base.PyTree, item: base.PyTree
    ) -> tuple[base.PyTree, base.PyTree]:
      (inputs, kept), (i, block) = carry, item
      index = first + i * self._layout.blocks.period
      outputs, residuals, stats = jax.lax.cond(
          i < count,
          self._block_forward,
          self._skip_forward,
          *(block, inputs, batch, key, index),
      )
      starts = kept.inputs
      if starts is not None:  # That of the first block is overwritten.
        place = slot * (num_blocks - 1) + jnp.maximum(i - 1, 0)
        starts = put(starts, inputs, place)
      residuals = put(kept.residuals, residuals, slot * num_blocks + i)
      return (outputs, buffers_lib.Kept(residuals, starts)), stats

    items = (jnp.arange(num_blocks), blocks)
    (outputs, kept), stats = jax.lax.scan(run, (inputs, kept), items)
    return outputs, kept, stats

  def backward(
      self,
      blocks: Block,
      inputs: base.PyTree,
      kept: buffers_lib.Kept,
      grad: base.PyTree,
      grads: list[base.PyTree],
      *,
      stage: jax.Array,
      slot: jax.Array,
  ) -> tuple[base.PyTree, list[base.PyTree]]:
    """Runs the backward pass of the blocks of a stage.

    `kept` is from `forward`, `grad` of the output. Returns the gradient of
    `inputs`, and `grads`, arrays [blocks, ...], with those of the blocks added
    in place.
    """
    count = jnp.asarray(self._layout.counts)[stage]
    num_blocks = self._layout.max_count

    def run(carry: base.PyTree, item: base.PyTree) -> tuple[base.PyTree, None]:
      (grad, grads), (i, block) = carry, item
      start = inputs
      if kept.inputs is not None:
        place = slot * (num_blocks - 1) + jnp.maximum(i - 1, 0)
        start = jax.tree.map(
            lambda first, other: jnp.where(i == 0, first, other),
            inputs,
            buffers_lib.read(kept.inputs, place),
        )
      residuals = buffers_lib.read(kept.residuals, slot * num_blocks + i)
      grad, found = jax.lax.cond(
          i < count,
          self._block_backward,
          self._skip_backward,
          *(block, start, residuals, grad),
      )
      total = trees.add(buffers_lib.read(grads, i), found)
      return (grad, buffers_lib.put(grads, total, i)), None

    items = (jnp.arange(num_blocks), blocks)
    carry, _ = jax.lax.scan(run, (grad, grads), items, reverse=True)
    return carry

  def kept_shapes(
      self, block: Block, activation: base.PyTree, num_slots: int
  ) -> buffers_lib.Kept:
    """Returns the shapes of what is kept."""
    count = self._layout.max_count
    key = jax.eval_shape(lambda: jax.random.key(0, impl=self._spec.prng))
    _, residuals, _ = jax.eval_shape(
        self._block_forward, block, activation, dict(self._spec.batch), key, 0
    )
    starts = None
    if count > 1:
      starts = trees.repeat(activation, num_slots * (count - 1))
    residuals = trees.repeat(residuals, num_slots * count)
    return buffers_lib.Kept(residuals, starts)

  def _block_forward(
      self,
      block: Block,
      inputs: base.PyTree,
      batch: base.PyTree,
      key: jax.Array,
      index: jax.Array,
  ) -> tuple[base.PyTree, list[jax.Array], list[base.PyTree]]:
    first = self._layout.blocks.first
    layers = self._spec.model.layers[first : first + len(block)]

    # With rematerialisation the key is a residual; so it crosses as plain data.
    data = jax.random.key_data(key)

    def apply(
        params: list[base.PyTree], inputs: base.PyTree
    ) -> tuple[base.PyTree, base.PyTree]:
      key, stats = jax.random.wrap_key_data(data, impl=self._spec.prng), []
      for j, layer in enumerate(layers):
        inputs, new_stats = layer.apply(
            params[j],
            block[j].stats,
            inputs,
            {name: batch[name] for name in layer.batch_keys},
            key=jax.random.fold_in(key, index + j),
            train=True,
        )
        stats.append(new_stats)
      return inputs, stats

    if self._spec.remat != "full":
      apply = jax.checkpoint(
          apply, policy=spec_lib.REMAT_POLICIES[self._spec.remat]
      )
    params = [layer.params for layer in block]
    outputs, vjp, stats = jax.vjp(apply, params, inputs, has_aux=True)
    self._vjp, residuals = compat.split_vjp(vjp)
    return outputs, residuals, stats

  def _skip_forward(
      self, block: Block, inputs: base.PyTree, *args: base.PyTree
  ) -> tuple[base.PyTree, list[jax.Array], list[base.PyTree]]:
    _, residuals, stats = jax.eval_shape(
        self._block_forward, block, inputs, *args
    )
    return inputs, trees.zeros_like(residuals), trees.zeros_like(stats)

  def _block_backward(
      self,
      block: Block,
      inputs: base.PyTree,
      residuals: list[jax.Array],
      grad: base.PyTree,
  ) -> tuple[base.PyTree, list[base.PyTree]]:
    args = ([layer.params for layer in block], inputs)
    found, grad_inputs = self._vjp.join(args, residuals)(grad)
    return grad_inputs, found

  def _skip_backward(
      self,
      block: Block,
      inputs: base.PyTree,
      residuals: list[jax.Array],
      grad: base.PyTree,
  ) -> tuple[base.PyTree, list[base.PyTree]]:
    return grad, trees.zeros_like([layer.params for layer in block])
