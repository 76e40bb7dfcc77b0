"""What a device does in one tick.

It runs the redundant forward pass of its successor, if the table says so, then
the pass of its own stage, and then exchanges the results with its neighbours.
Passes stand in branches, of which every stage takes its own; exchanges, in
which all take part, stand outside.
"""

import dataclasses

import jax
import jax.numpy as jnp

from bamboo_jax import base
from bamboo_jax.runtime.spmd import block_passes
from bamboo_jax.runtime.spmd import branch
from bamboo_jax.runtime.spmd import buffers as buffers_lib
from bamboo_jax.runtime.spmd import end_passes
from bamboo_jax.runtime.spmd import finish
from bamboo_jax.runtime.spmd import state as state_lib
from bamboo_jax.runtime.spmd import trees
from bamboo_jax.schedule.ticks import table as ticks_lib

Buffers = buffers_lib.Buffers
Sums = finish.Sums
Kept = buffers_lib.Kept


@dataclasses.dataclass(frozen=True)
class TickBody:
  """Runs ticks on one device; the body of a scan.

  Attributes:
    ends: The passes of the layers around them.
    activation: Shapes of the values between stages.
    state: State of this device, without the dimension of stages.
    batch: Microbatches of its pipeline, arrays [microbatches, ...].
    keys: Their keys, [microbatches].
  """

  blocks: block_passes.BlockPasses
  ends: end_passes.EndPasses
  activation: base.PyTree
  state: state_lib.ProgramState
  batch: base.PyTree
  keys: jax.Array
  num_stages: int

  def run(
      self, carry: tuple[Buffers, Sums, Kept | None], row: jax.Array
  ) -> tuple[tuple[Buffers, Sums, Kept | None], None]:
    """Runs a tick; `row` has the fields of a `ticks.Tick`, int32.

    `carry` is ring buffers, sums, and the buffer in host memory for residuals
    of redundant forward passes, or None.
    """
    buffers, sums, host = carry
    nothing = trees.zeros_like(self.activation)
    if host is not None:
      (buffers, host), row = branch.run_if(
          ticks_lib.Tick(*row).redundant >= 0,
          self._redundant,
          (buffers, host),
          row,
      )
    (buffers, sums, outputs), row = branch.run_if(
        ticks_lib.Tick(*row).code == ticks_lib.Code.FORWARD,
        self._forward,
        (buffers, sums, nothing),
        row,
    )
    (buffers, sums, grads), row = branch.run_if(
        ticks_lib.Tick(*row).code == ticks_lib.Code.BACKWARD,
        self._backward,
        (buffers, sums, nothing),
        row,
    )
    tick = ticks_lib.Tick(*row)
    down = [(s, s + 1) for s in range(self.num_stages - 1)]
    up = [(s + 1, s) for s in range(self.num_stages - 1)]
    # Sent before the backward pass, as XLA is free to do, outputs would make
    # this stage wait for those that run a forward pass in this tick: passes of
    # a tick would run one after the other. So outputs hang on what comes after.
    seem = lambda a: jnp.where(tick.code >= 0, a, jnp.zeros_like(a))
    outputs = jax.tree.map(seem, outputs)
    inputs, slot = _send(outputs, down), tick.arriving_inputs
    buffers = buffers.replace(
        inputs=buffers_lib.write(buffers.inputs, inputs, slot)
    )
    grads, slot = _send(grads, up), tick.arriving_grads
    buffers = buffers.replace(
        grads=buffers_lib.write(buffers.grads, grads, slot)
    )
    return (buffers, sums, host), None

  def _forward(
      self, carry: tuple[Buffers, Sums, base.PyTree], row: jax.Array
  ) -> tuple[Buffers, Sums, base.PyTree]:
    """Runs a forward pass; on the last stage also that of the epilogue."""
    tick, (buffers, sums, _) = ticks_lib.Tick(*row), carry
    batch, key, entered = self._enter(
        tick.microbatch, buffers.inputs, tick.inputs, is_first=self._stage == 0
    )
    outputs, kept, stats = self.blocks.forward(
        self.state.blocks,
        entered.inputs,
        batch,
        key,
        buffers.kept,
        stage=self._stage,
        slot=tick.residual,
    )
    left = self.ends.leave(
        self.state.ends,
        end_passes.Left(outputs, sums.loss, sums.end_stats, sums.end_grads),
        batch,
        key,
        is_last=self._stage == self.num_stages - 1,
    )
    sums = sums.replace(
        loss=left.loss,
        stats=trees.add(sums.stats, stats),
        end_stats=trees.add_some(left.stats, entered.stats),
        end_grads=left.grads,
    )
    buffers = buffers.replace(
        kept=kept,
        output_grads=buffers_lib.put(
            buffers.output_grads, left.outputs, tick.residual
        ),
    )
    if buffers.outputs is not None:
      kept_outputs = buffers_lib.write(buffers.outputs, outputs, tick.outputs)
      buffers = buffers.replace(outputs=kept_outputs)
    return buffers, sums, outputs

  def _backward(
      self, carry: tuple[Buffers, Sums, base.PyTree], row: jax.Array
  ) -> tuple[Buffers, Sums, base.PyTree]:
    """Runs a backward pass; on the first stage also that of the prologue."""
    tick, (buffers, sums, _) = ticks_lib.Tick(*row), carry
    _, _, entered = self._enter(
        tick.microbatch, buffers.inputs, tick.inputs, is_first=self._stage == 0
    )
    grad, grads = self.blocks.backward(
        self.state.blocks,
        entered.inputs,
        buffers.kept,
        jax.lax.cond(
            self._stage == self.num_stages - 1,
            lambda: buffers_lib.read(buffers.output_grads, tick.residual),
            lambda: buffers_lib.read(buffers.grads, tick.grads),
        ),
        sums.grads,
        stage=self._stage,
        slot=tick.residual,
    )
    end_grads = self.ends.enter_backward(
        self.state.ends,
        entered,
        grad,
        sums.end_grads,
        is_first=self._stage == 0,
    )
    return buffers, sums.replace(grads=grads, end_grads=end_grads), grad

  def _redundant(
      self, carry: tuple[Buffers, Kept], row: jax.Array
  ) -> tuple[Buffers, Kept]:
    tick, (buffers, host) = ticks_lib.Tick(*row), carry
    batch, key, entered = self._enter(
        tick.redundant,
        buffers.outputs,
        tick.redundant_inputs,
        is_first=self._stage == self.num_stages - 1,
    )
    _, host, _ = self.blocks.forward(
        self.state.replica,
        entered.inputs,
        batch,
        key,
        host,
        stage=(self._stage + 1) % self.num_stages,
        slot=tick.redundant,
        space=jax.memory.Space.Host,
    )
    return buffers, host

  def _enter(
      self,
      microbatch: jax.Array,
      buffer: base.PyTree,
      slot: jax.Array,
      *,
      is_first: jax.Array,
  ) -> tuple[base.PyTree, jax.Array, end_passes.Entered]:
    """Returns a microbatch, its key, and the start of the blocks."""
    batch, key = buffers_lib.read((self.batch, self.keys), microbatch)
    entered = self.ends.enter(
        self.state.ends,
        batch,
        key,
        is_first=is_first,
        inputs=lambda: buffers_lib.read(buffer, slot),
    )
    return batch, key, entered

  @property
  def _stage(self) -> jax.Array:
    return jax.lax.axis_index(state_lib.STAGE)


def _send(values: base.PyTree, pairs: list[tuple[int, int]]) -> base.PyTree:
  return jax.tree.map(
      lambda a: jax.lax.ppermute(a, state_lib.STAGE, pairs), values
  )
