"""The layers before the blocks, on the first stage, and after, on the last.

Both are in branches, so that no other stage computes them, and derivatives are
taken inside: no derivative crosses a branch. The prologue is recomputed in the
backward pass. The epilogue runs forward and backward in the backward pass:
nothing of the size of the logits is kept, and redundant forward passes, whose
outputs no stage waits for, skip it.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from bamboo_jax import base
from bamboo_jax.models import model as model_lib
from bamboo_jax.runtime.spmd import (
    block_passes,
    branch,
    buffers as buffers_lib,
    layout as layout_lib,
)
from bamboo_jax.runtime.spmd.ticks import tick_table as table_lib
from bamboo_jax.runtime.stage import programs as programs_lib, spec as spec_lib

Data = block_passes.Data
Ends = dict[str, tuple[base.PyTree, base.PyTree]]  # Parameters, statistics.
Kept = buffers_lib.Kept
MicrobatchSums = buffers_lib.MicrobatchSums


class EndPasses:
  """The passes of prologue and epilogue; `spec` is the whole model."""

  def __init__(self, spec: spec_lib.StageSpec, layout: layout_lib.BlockLayout) -> None:
    self.spec, self.layout = spec, layout

  def enter(
      self,
      p: table_lib.Pass,
      ends: Ends,
      sums: MicrobatchSums,
      data: Data,
      inputs: Callable[[], base.PyTree],
  ) -> tuple[base.PyTree, MicrobatchSums]:
    """Runs the prologue on stage 0; returns the blocks' input, and `sums`.

    On other stages the input is the result of `inputs`, the output of the
    previous stage. Statistics of the prologue are added to `sums`.
    """
    params, stats = self._split(ends, self.layout.prologue)

    def run() -> tuple[base.PyTree, dict[str, base.PyTree]]:
      return self._apply(self.layout.prologue, params, stats, None, data)

    def skip() -> tuple[base.PyTree, dict[str, base.PyTree]]:
      return inputs(), buffers_lib.zeros_like(jax.eval_shape(run)[1])

    entered, found = jax.lax.cond(p.stage == 0, run, skip)
    # A pass that is run again adds no statistics.
    found = jax.tree.map(lambda a: jnp.where(p.counts > 0, a, 0), found)
    return entered, sums.replace(end_stats=_add(sums.end_stats, found))

  def enter_backward(
      self, p: table_lib.Pass, ends: Ends, sums: MicrobatchSums, data: Data, grad: base.PyTree
  ) -> MicrobatchSums:
    """Returns `sums` with the gradients of the prologue added, in place.

    `grad` is the gradient of the input of the blocks.
    """
    batch, key = data

    def run(
        grads: dict[str, base.PyTree], inputs: tuple[base.PyTree, base.PyTree]
    ) -> dict[str, base.PyTree]:
      grad, batch = inputs
      params, stats = self._split(ends, self.layout.prologue)
      apply = lambda params: self._apply(self.layout.prologue, params, stats, None, (batch, key))
      _, vjp, _ = jax.vjp(apply, params, has_aux=True)
      return _add(grads, vjp(grad)[0])

    grads, _ = branch.run_if(p.stage == 0, run, sums.end_grads, (grad, batch))
    return sums.replace(end_grads=grads)

  def leave(
      self, p: table_lib.Pass, ends: Ends, sums: MicrobatchSums, kept: Kept, data: Data
  ) -> tuple[base.PyTree, MicrobatchSums]:
    """Runs the epilogue, forth and back, on the last stage.

    Returns the gradient of the output of the blocks, undefined on other stages,
    and the updated `sums`.
    """

    def run(state: Any, outputs: base.PyTree) -> Any:
      _, total, all_stats, all_grads = state
      params, stats = self._split(ends, self.layout.epilogue)
      apply = lambda params, outputs: self._apply(
          self.layout.epilogue, params, stats, outputs, data
      )
      loss, vjp, stats = jax.vjp(apply, params, outputs, has_aux=True)
      one = jnp.ones_like(loss.total)  # Of the loss, not its weight.
      grads, grad = vjp(jax.tree.map(jnp.zeros_like, loss).replace(total=one))
      total += loss.stack()
      return grad, total, _add(all_stats, stats), _add(all_grads, grads)

    outputs = buffers_lib.read(kept.outputs, p.residual)
    state = (outputs, sums.loss, sums.end_stats, sums.end_grads)
    is_last = p.stage == self.layout.num_stages - 1
    (grad, loss, stats, grads), _ = branch.run_if(is_last, run, state, outputs)
    return grad, sums.replace(loss=loss, end_stats=stats, end_grads=grads)

  def _split(self, ends: Ends, layers: range) -> tuple[base.PyTree, base.PyTree]:
    names = [self.spec.model.layer_names[i] for i in layers]
    return (
        {name: programs_lib.widen(ends[name][0]) for name in names},
        {name: ends[name][1] for name in names},
    )

  def _apply(
      self, layers: range, params: base.PyTree, stats: base.PyTree, inputs: base.PyTree, data: Data
  ) -> tuple[base.PyTree, dict[str, base.PyTree]]:
    (batch, key), model = data, self.spec.model
    return model_lib.apply_range(
        *(model, layers.start, layers.stop, params, stats, inputs, batch), key=key, train=True
    )


def _add(total: dict[str, base.PyTree], more: dict[str, base.PyTree]) -> dict[str, base.PyTree]:
  """Returns `total` with the entries of `more` added."""
  old = {name: total[name] for name in more}
  return total | jax.tree.map(lambda t, m: t + m.astype(t.dtype), old, more)
