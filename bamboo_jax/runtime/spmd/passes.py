"""The passes of a stage inside a tick: those of the programs of its units.

The first stage begins with the layers before the blocks, the prologue, and the
last one ends with those behind them, the epilogue. Both are in branches, so that
no other stage computes them. The prologue is recomputed in the backward pass.
The epilogue runs forward and backward in the backward pass: nothing of the size
of the logits is kept, and redundant forward passes, whose outputs no stage waits
for, skip it.

All stages that a node holds are in the same arrays, and a pass takes the index
of its stage: so passes of an owner, of a shadow and of a node that took over are
the same code, and give the same bits.
"""

from collections.abc import Callable, Sequence
import dataclasses

import flax.struct
import jax
import jax.numpy as jnp

from bamboo_jax import base
from bamboo_jax.runtime.spmd import (
    branch,
    buffers as buffers_lib,
    layout as layout_lib,
    ticks as ticks_lib,
)
from bamboo_jax.runtime.stage import programs as programs_lib, spec as spec_lib

# Parameters and statistics of the layers of a unit, by position.
Unit = tuple[programs_lib.Layers, programs_lib.Layers]


class DeviceWeights(flax.struct.PyTreeNode):
  """Parameters and statistics that a device computes with.

  Attributes:
    blocks: Of a block, arrays [holds, blocks, ...]: the stages that its node
      owns, or its stage and that of its replica.
    prologue: Zero on nodes that do not run it, as is `epilogue`.
  """

  blocks: Unit
  prologue: Unit
  epilogue: Unit


@dataclasses.dataclass(frozen=True)
class Data:
  """A microbatch, and what its random numbers follow from."""

  batch: base.PyTree
  step: jax.Array
  microbatch: jax.Array


class StagePasses:
  """The passes of a stage, whose index may be traced; `spec` is the whole model."""

  def __init__(self, spec: spec_lib.StageSpec, layout: layout_lib.BlockLayout) -> None:
    self._layout = layout
    self.block = programs_lib.UnitPrograms(layout_lib.unit_of(spec, layout.block))
    # Both run forward and backward in one pass: to keep nothing would save nothing.
    self.prologue, self.epilogue = (
        programs_lib.UnitPrograms(
            dataclasses.replace(layout_lib.unit_of(spec, layers), remat="full")
        )
        for layers in (layout.prologue, layout.epilogue)
    )

  def forward(
      self,
      p: ticks_lib.Pass,
      weights: DeviceWeights,
      inputs: Callable[[], base.PyTree],
      data: Data,
      kept: buffers_lib.Kept,
  ) -> tuple[base.PyTree, buffers_lib.Kept]:
    """Runs a forward pass; the input is the result of `inputs`, but on stage 0.

    Returns the output, and `kept`, changed in place.
    """
    first = self._layout.first_layer(p.stage)
    enter = lambda: _forward(self.prologue, weights.prologue, None, data, 0)[0]
    entered = jax.lax.cond(p.stage == 0, enter, inputs)

    def run(i: jax.Array, carry: base.PyTree) -> base.PyTree:
      inputs, kept = carry
      own = buffers_lib.read(weights.blocks, p.hold, i)
      outputs, saved = _forward(
          self.block, own, inputs, data, first + i * self._layout.blocks.period
      )
      put = lambda buffer, value: buffers_lib.put(buffer, value, p.residual, i)
      return outputs, kept.replace(saved=put(kept.saved, saved), inputs=put(kept.inputs, inputs))

    outputs, kept = jax.lax.fori_loop(0, self._count(p), run, (entered, kept))
    return outputs, kept.replace(outputs=buffers_lib.put(kept.outputs, outputs, p.residual))

  def backward(
      self,
      p: ticks_lib.Pass,
      weights: DeviceWeights,
      grad: base.PyTree,
      data: Data,
      kept: buffers_lib.Kept,
      sums: buffers_lib.MicrobatchSums,
  ) -> tuple[base.PyTree, buffers_lib.MicrobatchSums]:
    """Runs a backward pass; `grad` is that of the output, but on the last stage.

    Returns the gradient of the input, and `sums`, changed in place.
    """

    def leave(state: base.PyTree, outputs: base.PyTree) -> base.PyTree:
      _, total = state
      _, saved = _forward(
          self.epilogue, weights.epilogue, outputs, data, self._layout.epilogue.start
      )
      return _backward(self.epilogue, weights.epilogue, outputs, saved, None, total)

    outputs = buffers_lib.read(kept.outputs, p.residual)
    is_last = p.stage == self._layout.num_stages - 1
    (grad, total), _ = branch.run_if(is_last, leave, (grad, sums.epilogue), outputs)
    sums = sums.replace(epilogue=total)

    def run(j: jax.Array, carry: base.PyTree) -> base.PyTree:
      (grad, total), i = carry, self._layout.count - 1 - j
      own = buffers_lib.read(weights.blocks, p.hold, i)
      start, saved = buffers_lib.read((kept.inputs, kept.saved), p.residual, i)
      before = buffers_lib.read(total, p.hold, i)
      grad, after = _backward(self.block, own, start, saved, grad, before)
      return grad, buffers_lib.put(total, after, p.hold, i)

    grad, total = jax.lax.fori_loop(0, self._count(p), run, (grad, sums.blocks))
    sums = sums.replace(blocks=total)

    def enter(total: base.PyTree, inputs: tuple[base.PyTree, base.PyTree]) -> base.PyTree:
      grad, batch = inputs
      again = dataclasses.replace(data, batch=batch)
      _, saved = _forward(self.prologue, weights.prologue, None, again, 0)
      return _backward(self.prologue, weights.prologue, None, saved, grad, total)[1]

    total, _ = branch.run_if(p.stage == 0, enter, sums.prologue, (grad, data.batch))
    return grad, sums.replace(prologue=total)

  def kept_shapes(self, activation: base.PyTree) -> buffers_lib.Kept:
    """Returns the shapes of the values kept in one slot."""
    repeat = lambda tree: buffers_lib.repeat(tree, self._layout.count)
    return buffers_lib.Kept(repeat(self.block.saved), repeat(activation), activation)

  def sums_shapes(self, num_owned: int) -> buffers_lib.MicrobatchSums:
    """Returns the shapes of the sums of a node, for the number of stages that it owns."""
    block, *ends = (u.unit.accumulator for u in (self.block, self.prologue, self.epilogue))
    blocks = buffers_lib.repeat(block, num_owned, self._layout.count)
    return buffers_lib.MicrobatchSums(blocks, *ends)

  def _count(self, p: ticks_lib.Pass) -> jax.Array:
    """Returns the number of blocks of a stage, as a value that is traced.

    XLA makes a loop part of a CUDA graph only if it does not know the trip count.
    """
    return jnp.where(p.stage < 0, 0, self._layout.count)


def _forward(
    unit: programs_lib.UnitPrograms,
    weights: Unit,
    inputs: base.PyTree,
    data: Data,
    index: int | jax.Array,
) -> tuple[base.PyTree, spec_lib.Saved]:
  batch = {key: data.batch[key] for key in unit.unit.batch_keys}
  index = jnp.asarray(index, jnp.uint32)
  _, *result = unit.forward(
      *(programs_lib.make_token(), *weights, inputs, batch, data.step, data.microbatch, index)
  )
  return tuple(result)


def _backward(
    unit: programs_lib.UnitPrograms, weights: Unit, *values: base.PyTree
) -> Sequence[base.PyTree]:
  """Returns the gradient of the input, and the sums.

  `values` are the input, saved values, gradient of the output, and former sums.
  """
  return unit.backward(programs_lib.make_token(), weights[0], *values)[1:]
