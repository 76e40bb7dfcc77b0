"""The layers before the blocks, on the first stage, and after, on the last.

Both stand in branches, so that no other stage computes them, and derivatives
are taken inside: nothing differentiates through a branch. The prologue is run
again in the backward pass. The epilogue runs forth and back in the backward
pass: nothing of the size of the logits is kept, and redundant forward passes,
for whose outputs nobody waits, leave it out.
"""

from collections.abc import Callable
import dataclasses

import jax
import jax.numpy as jnp

from bamboo_jax import base
from bamboo_jax.models import model as model_lib
from bamboo_jax.runtime.spmd import block_passes
from bamboo_jax.runtime.spmd import branch
from bamboo_jax.runtime.spmd import buffers as buffers_lib
from bamboo_jax.runtime.spmd import layout as layout_lib
from bamboo_jax.runtime.stage import functions
from bamboo_jax.runtime.stage import spec as spec_lib
from bamboo_jax.schedule.ticks import table as table_lib

Data = block_passes.Data
Ends = dict[str, tuple[base.PyTree, base.PyTree]]  # Parameters, statistics.
Sums = buffers_lib.Sums


@dataclasses.dataclass(frozen=True)
class EndPasses:
  """The passes of prologue and epilogue; `spec` is the whole model."""

  spec: spec_lib.StageSpec
  layout: layout_lib.Layout

  def enter(
      self,
      p: table_lib.Pass,
      ends: Ends,
      sums: Sums,
      data: Data,
      inputs: Callable[[], base.PyTree],
  ) -> tuple[base.PyTree, Sums]:
    """Returns the input of the blocks; `inputs` returns the output before."""
    params, stats = self._split(ends, self.layout.prologue)

    def run() -> tuple[base.PyTree, dict[str, base.PyTree]]:
      return self._apply(self.layout.prologue, params, stats, None, data)

    def skip() -> tuple[base.PyTree, dict[str, base.PyTree]]:
      return inputs(), buffers_lib.zeros_like(jax.eval_shape(run)[1])

    entered, found = jax.lax.cond(p.stage == 0, run, skip)
    found = jax.tree.map(lambda a: jnp.where(p.counts > 0, a, 0), found)
    return entered, sums.replace(end_stats=_add(sums.end_stats, found))

  def enter_backward(
      self,
      p: table_lib.Pass,
      ends: Ends,
      sums: Sums,
      data: Data,
      grad: base.PyTree,
  ) -> Sums:
    """Returns `sums` with the gradients of the prologue added, in place.

    `grad` is that of the input of the blocks.
    """
    batch, key = data

    def run(
        grads: dict[str, base.PyTree], inputs: tuple[base.PyTree, base.PyTree]
    ) -> dict[str, base.PyTree]:
      grad, batch = inputs
      params, stats = self._split(ends, self.layout.prologue)
      apply = lambda params: self._apply(
          self.layout.prologue, params, stats, None, (batch, key)
      )
      _, vjp, _ = jax.vjp(apply, params, has_aux=True)
      return _add(grads, vjp(grad)[0])

    grads, _ = branch.run_if(p.stage == 0, run, sums.end_grads, (grad, batch))
    return sums.replace(end_grads=grads)

  def leave(
      self,
      p: table_lib.Pass,
      ends: Ends,
      sums: Sums,
      outputs: base.PyTree,
      data: Data,
  ) -> tuple[base.PyTree, Sums]:
    """Runs the epilogue, forth and back, if the stage is the last.

    Returns the gradient of `outputs`, those of the blocks, and the sums; what
    it returns on other stages is of no use.
    """

    def run(state: tuple, outputs: base.PyTree) -> tuple:
      _, total, all_stats, all_grads = state
      params, stats = self._split(ends, self.layout.epilogue)
      apply = lambda params, outputs: self._apply(
          self.layout.epilogue, params, stats, outputs, data
      )
      loss, vjp, stats = jax.vjp(apply, params, outputs, has_aux=True)
      one = jnp.ones_like(loss.total)
      cotangent = jax.tree.map(jnp.zeros_like, loss).replace(total=one)
      grads, grad = vjp(cotangent)
      total += jnp.stack([loss.total, loss.weight])
      return grad, total, _add(all_stats, stats), _add(all_grads, grads)

    is_last = p.stage == self.layout.num_stages - 1
    state = (outputs, sums.loss, sums.end_stats, sums.end_grads)
    (grad, loss, stats, grads), _ = branch.run_if(is_last, run, state, outputs)
    return grad, sums.replace(loss=loss, end_stats=stats, end_grads=grads)

  def _split(
      self, ends: Ends, layers: range
  ) -> tuple[base.PyTree, base.PyTree]:
    names = [self.spec.model.layer_names[i] for i in layers]
    return (
        {name: functions.widen(ends[name][0]) for name in names},
        {name: ends[name][1] for name in names},
    )

  def _apply(
      self,
      layers: range,
      params: base.PyTree,
      stats: base.PyTree,
      inputs: base.PyTree,
      data: Data,
  ) -> tuple[base.PyTree, dict[str, base.PyTree]]:
    (batch, key), model = data, self.spec.model
    return model_lib.apply_range(
        *(model, layers.start, layers.stop, params, stats, inputs, batch),
        key=key,
        train=True,
    )


def _add(
    total: dict[str, base.PyTree], more: dict[str, base.PyTree]
) -> dict[str, base.PyTree]:
  """Returns `total`, to whose entries those of `more` are added."""
  old = {name: total[name] for name in more}
  return total | jax.tree.map(lambda t, m: t + m.astype(t.dtype), old, more)
