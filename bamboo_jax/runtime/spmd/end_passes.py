"""The layers before the blocks, on the first stage, and after, on the last.

Both stand in branches, so that no other stage computes them, and derivatives
are taken inside: nothing differentiates through a branch. The prologue is run
again in the backward pass. The epilogue runs forth and back in the forward
pass: nothing of the size of the logits is kept, and the last stage, whose
forward pass runs beside backward passes of others, has time for it.
"""

from collections.abc import Callable

import flax.struct
import jax
import jax.numpy as jnp

from bamboo_jax import base
from bamboo_jax.models import model as model_lib
from bamboo_jax.runtime import compat
from bamboo_jax.runtime.spmd import branch
from bamboo_jax.runtime.spmd import layout as layout_lib
from bamboo_jax.runtime.spmd import trees
from bamboo_jax.runtime.stage import spec as spec_lib

Ends = dict[str, spec_lib.LayerState]


@flax.struct.dataclass
class Entered:
  """The start of the blocks of a stage.

  Attributes:
    inputs: Input of the first block.
    residuals: Of the prologue; zero unless the stage is the first.
    stats: Statistics of the prologue by name of the layer; likewise.
  """

  inputs: base.PyTree
  residuals: list[jax.Array]
  stats: dict[str, base.PyTree]


@flax.struct.dataclass
class Left:
  """What the epilogue takes and returns.

  Attributes:
    outputs: Output of the last block, in its place later its gradient.
    loss: Sum of the losses and their weight so far, float32 [2].
    stats: Sums of statistics by name of the layer.
    grads: Gradients so far by name of the layer.
  """

  outputs: base.PyTree
  loss: jax.Array
  stats: dict[str, base.PyTree]
  grads: dict[str, base.PyTree]


class EndPasses:
  """The passes of prologue and epilogue; `spec` is the whole model."""

  def __init__(
      self, spec: spec_lib.StageSpec, layout: layout_lib.Layout
  ) -> None:
    self._spec = spec
    self._layout = layout
    self._vjp: compat.VjpSkeleton | None = None  # Of the prologue.

  def enter(
      self,
      ends: Ends,
      batch: base.PyTree,
      key: jax.Array,
      *,
      is_first: jax.Array,
      inputs: Callable[[], base.PyTree],
  ) -> Entered:
    """Returns the start of the blocks; `inputs` returns the output before."""

    def run() -> Entered:
      params, stats = self._split(ends, self._layout.prologue)
      apply = lambda params: self._apply(
          self._layout.prologue, params, stats, None, batch, key
      )
      outputs, vjp, stats = jax.vjp(apply, params, has_aux=True)
      self._vjp, residuals = compat.split_vjp(vjp)
      return Entered(outputs, residuals, stats)

    def skip() -> Entered:
      return trees.zeros_like(jax.eval_shape(run)).replace(inputs=inputs())

    return jax.lax.cond(is_first, run, skip)

  def enter_backward(
      self,
      ends: Ends,
      entered: Entered,
      grad: base.PyTree,
      grads: dict[str, base.PyTree],
      *,
      is_first: jax.Array,
  ) -> dict[str, base.PyTree]:
    """Returns `grads` with those of the prologue added, in place.

    `entered` is from `enter`, `grad` the gradient of `entered.inputs`; `grads`
    is by name of the layer.
    """

    def run(
        grads: dict[str, base.PyTree], grad: base.PyTree
    ) -> dict[str, base.PyTree]:
      params, _ = self._split(ends, self._layout.prologue)
      vjp = self._vjp.join((params,), entered.residuals)
      (found,) = vjp(grad)
      return trees.add_some(grads, found)

    return branch.run_if(is_first, run, grads, grad)[0]

  def leave(
      self,
      ends: Ends,
      left: Left,
      batch: base.PyTree,
      key: jax.Array,
      *,
      is_last: jax.Array,
  ) -> Left:
    """Runs the epilogue, forth and back, if the stage is the last.

    `left.outputs` are those of the blocks.
    """

    def run(left: Left, outputs: base.PyTree) -> Left:
      params, stats = self._split(ends, self._layout.epilogue)
      apply = lambda params, outputs: self._apply(
          self._layout.epilogue, params, stats, outputs, batch, key
      )
      loss, vjp, stats = jax.vjp(apply, params, outputs, has_aux=True)
      one = jnp.ones_like(loss.total)
      cotangent = jax.tree.map(jnp.zeros_like, loss).replace(total=one)
      grads, grad = vjp(cotangent)
      return Left(
          outputs=grad,
          loss=left.loss + jnp.stack([loss.total, loss.weight]),
          stats=trees.add_some(left.stats, stats),
          grads=trees.add_some(left.grads, grads),
      )

    return branch.run_if(is_last, run, left, left.outputs)[0]

  def _split(
      self, ends: Ends, layers: range
  ) -> tuple[base.PyTree, base.PyTree]:
    names = [self._spec.model.layer_names[i] for i in layers]
    return (
        {name: ends[name].params for name in names},
        {name: ends[name].stats for name in names},
    )

  def _apply(
      self,
      layers: range,
      params: base.PyTree,
      stats: base.PyTree,
      inputs: base.PyTree,
      batch: base.PyTree,
      key: jax.Array,
  ) -> tuple[base.PyTree, dict[str, base.PyTree]]:
    return model_lib.apply_range(
        self._spec.model,
        layers.start,
        layers.stop,
        params,
        stats,
        inputs,
        batch,
        key=key,
        train=True,
    )
