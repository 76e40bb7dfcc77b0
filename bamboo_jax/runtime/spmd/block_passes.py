"""The forward and the backward pass of the blocks of a stage.

The derivative of each block is taken separately, and its saved values are
explicit: residuals without parameters, and its input. A pass is a loop over
blocks. All stages that a node holds are in the same arrays, and a pass takes the
index of its stage: so passes of an owner, of a shadow and of a node that took
over are the same code, and give the same bits.
"""

import jax
import jax.numpy as jnp

from bamboo_jax import base
from bamboo_jax.models import remat
from bamboo_jax.runtime import compat
from bamboo_jax.runtime.spmd import buffers as buffers_lib, layout as layout_lib
from bamboo_jax.runtime.spmd.ticks import tick_table as table_lib
from bamboo_jax.runtime.stage import programs as programs_lib, spec as spec_lib

# Parameters and statistics of the layers of a block.
Block = list[tuple[base.PyTree, base.PyTree]]
Data = tuple[base.PyTree, jax.Array]  # A microbatch, and the key for dropout.


class BlockPasses:
  """The passes of the blocks of a stage, whose index may be traced.

  `spec` is the whole model as one stage, `params` are shapes by layer.
  """

  def __init__(
      self, spec: spec_lib.StageSpec, layout: layout_lib.BlockLayout, params: dict[str, base.PyTree]
  ) -> None:
    self._spec, self._params = spec, params
    self._layout = layout
    self._join_vjp: compat.JoinVjp | None = None  # Of one block.

  def forward(
      self,
      p: table_lib.Pass,
      blocks: Block,
      inputs: base.PyTree,
      data: Data,
      kept: buffers_lib.Kept,
      stats: list[base.PyTree],
  ) -> tuple[base.PyTree, buffers_lib.Kept, list[base.PyTree]]:
    """Runs the blocks of a stage; `blocks` are arrays [holds, blocks, ...].

    Returns the output, `kept` and the sums of statistics, arrays [holds,
    blocks, ...]; the last two are changed in place.
    """
    first = self._layout.first_layer(p.stage)

    def run(i: jax.Array, carry: base.PyTree) -> base.PyTree:
      inputs, kept, stats = carry
      outputs, residuals, found = self._forward(
          buffers_lib.read(blocks, p.hold, i),
          *(inputs, data, first + i * self._layout.blocks.period),
      )
      put = lambda buffer, value: buffers_lib.put(buffer, value, p.residual, i)
      kept = kept.replace(residuals=put(kept.residuals, residuals), inputs=put(kept.inputs, inputs))
      # A pass that is run again adds no statistics.
      found = jax.tree.map(lambda a: jnp.where(p.counts > 0, a, 0), found)
      return outputs, kept, buffers_lib.add(stats, found, p.hold, i)

    return jax.lax.fori_loop(0, self._count(p), run, (inputs, kept, stats))

  def backward(
      self,
      p: table_lib.Pass,
      blocks: Block,
      kept: buffers_lib.Kept,
      grad: base.PyTree,
      grads: list[base.PyTree],
  ) -> tuple[base.PyTree, list[base.PyTree]]:
    """Runs the backward pass of the blocks of a stage.

    `grad` is the gradient of the output. Returns the gradient of the input, and
    `grads`, arrays [stages of the node, blocks, ...], to which the gradients of
    the blocks are added in place.
    """
    last = self._layout.count - 1

    def run(j: jax.Array, carry: base.PyTree) -> base.PyTree:
      (grad, grads), i = carry, last - j
      block = buffers_lib.read(blocks, p.hold, i)
      start, residuals = buffers_lib.read((kept.inputs, kept.residuals), p.residual, i)
      params = programs_lib.widen([params for params, _ in block])
      assert self._join_vjp is not None, "Set by the forward pass."
      found, grad = self._join_vjp((params, start), residuals)(grad)
      return grad, buffers_lib.add(grads, found, p.hold, i)

    return jax.lax.fori_loop(0, self._count(p), run, (grad, grads))

  def shapes(self) -> Block:
    """Returns the shapes of a block."""
    blocks, state = self._layout.blocks, self._spec.state
    names = self._spec.model.layer_names[blocks.first :][: blocks.period]
    return [(self._params[name], state.stats[name]) for name in names]

  def kept_shapes(self, activation: base.PyTree) -> buffers_lib.Kept:
    """Returns the shapes of the values kept in one slot."""
    key = jax.eval_shape(lambda: jax.random.key(0, impl=self._spec.prng))
    data = (dict(self._spec.batch), key)
    _, residuals, _ = jax.eval_shape(self._forward, self.shapes(), activation, data, 0)
    repeat = lambda tree: buffers_lib.repeat(tree, self._layout.count)
    return buffers_lib.Kept(repeat(residuals), repeat(activation), activation)

  def _count(self, p: table_lib.Pass) -> jax.Array:
    """Returns the number of blocks of a stage, as a value that is traced.

    XLA makes a loop part of a CUDA graph only if it does not know the trip count.
    """
    return jnp.where(p.stage < 0, 0, self._layout.count)

  def _forward(
      self, block: Block, inputs: base.PyTree, data: Data, index: jax.Array
  ) -> tuple[base.PyTree, list[jax.Array], list[base.PyTree]]:
    first = self._layout.blocks.first
    layers = self._spec.model.layers[first : first + len(block)]

    batch, key = data
    # With rematerialisation the key is a residual, so it is passed as raw data.
    bits = jax.random.key_data(key)

    def apply(params: list[base.PyTree], inputs: base.PyTree) -> tuple[base.PyTree, base.PyTree]:
      key, stats = jax.random.wrap_key_data(bits, impl=self._spec.prng), []
      for j, layer in enumerate(layers):
        inputs, new_stats = layer.apply(
            params[j],
            block[j][1],
            inputs,
            {name: batch[name] for name in layer.batch_keys},
            key=jax.random.fold_in(key, index + j),
            train=True,
        )
        stats.append(new_stats)
      return inputs, stats

    apply = remat.checkpoint(apply, remat.of_units(self._spec.remat))
    params = programs_lib.widen([params for params, _ in block])
    outputs, vjp, stats = jax.vjp(apply, params, inputs, has_aux=True)
    self._join_vjp, residuals = compat.split_vjp(vjp)
    return outputs, residuals, stats
