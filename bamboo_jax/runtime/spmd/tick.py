"""The passes and the exchange of one tick on one device.

A device runs the forward passes that the table lists, redundant ones included,
copies residuals of redundant ones to host memory, runs the backward pass, and
then exchanges the results with its neighbours. Passes and copies are in loops
with as many iterations as the table says; exchanges, which involve all devices,
are outside these loops.
"""

import dataclasses

import jax
import jax.numpy as jnp

from bamboo_jax import base
from bamboo_jax.runtime.spmd import (
    branch,
    buffers as buffers_lib,
    passes as passes_lib,
    ticks as ticks_lib,
)

STAGE = "stage"  # The axis of the mesh.

Carry = buffers_lib.Carry
Kept = buffers_lib.Kept


@dataclasses.dataclass(frozen=True)
class TickBody:
  """Runs ticks on one device; the body of a scan.

  Attributes:
    activation: Shapes of the values between stages.
    batch: Microbatches of its pipeline, arrays [microbatches, ...].
    numbers: Global indices of the microbatches, [microbatches].
    fetched: Residuals that earlier programs left in host memory, or None.
  """

  passes: passes_lib.StagePasses
  activation: base.PyTree
  weights: passes_lib.DeviceWeights
  batch: base.PyTree
  numbers: jax.Array
  step: jax.Array
  num_nodes: int
  fetched: Kept | None

  def run(
      self, carry: tuple[Carry, Kept | None], row: jax.Array
  ) -> tuple[tuple[Carry, Kept | None], tuple[base.PyTree, base.PyTree]]:
    """Runs a tick; returns the next carry, and the values sent to both sides.

    `carry` has two parts: the buffers of the device, and the buffer in host
    memory for residuals of redundant forward passes, or None. `row` is
    int32[NUM_FIELDS], see `TickTable.as_array`.
    """
    carry, offloaded = carry
    nothing = buffers_lib.zeros_like(self.activation)
    passes = row[:-2].reshape(ticks_lib.NUM_FORWARDS + 1, -1)
    num_forwards = jnp.sum(passes[:-1, 0] >= 0)
    forward = lambda k, s: self._forward(ticks_lib.Pass(*passes[k]), *s)
    carry, outputs = jax.lax.fori_loop(0, num_forwards, forward, (carry, nothing))
    if offloaded is not None:  # On a GPU beside the backward pass.
      offload = lambda k, s: _offload(ticks_lib.Pass(*passes[k]), *s)
      # The own pass, if any, is the first, and stays.
      first = jnp.where(ticks_lib.Pass(*passes[0]).host < 0, 1, 0)
      offloaded, kept = jax.lax.fori_loop(first, num_forwards, offload, (offloaded, carry.kept))
      carry = carry.replace(kept=kept)
    (carry, grads), row = branch.run_if(passes[-1, 0] >= 0, self._backward, (carry, nothing), row)
    down = [(n, (n + 1) % self.num_nodes) for n in range(self.num_nodes)]
    up = [(to, source) for source, to in down]
    # XLA is free to send before the backward pass. Then outputs would make this
    # stage wait for the stages that run a forward pass in this tick, and the
    # passes of a tick would run one after the other. So outputs depend on later
    # results.
    seem = lambda a: jnp.where(row[0] >= -1, a, jnp.zeros_like(a))
    outputs = jax.tree.map(seem, outputs)
    write = buffers_lib.write
    carry = carry.replace(
        activations=write(carry.activations, _send(outputs, down), row[-2]),
        grads=write(carry.grads, _send(grads, up), row[-1]),
    )
    return (carry, offloaded), (outputs, grads)

  def _forward(
      self, p: ticks_lib.Pass, carry: Carry, sent: base.PyTree
  ) -> tuple[Carry, base.PyTree]:
    inputs = lambda: buffers_lib.read(carry.activations, p.inputs)
    outputs, kept = self.passes.forward(p, self.weights, inputs, self._data(p), carry.kept)
    written = buffers_lib.write(carry.activations, outputs, p.output)
    carry = carry.replace(activations=written, kept=kept)
    is_own = p.host < 0  # Outputs of redundant passes are not sent.
    choose = lambda new, old: jnp.where(is_own, new, old)
    return carry, jax.tree.map(choose, outputs, sent)

  def _backward(
      self, state: tuple[Carry, base.PyTree], row: jax.Array
  ) -> tuple[Carry, base.PyTree]:
    carry, _ = state
    fields = row[:-2].reshape(ticks_lib.NUM_FORWARDS + 1, -1)
    p = ticks_lib.Pass(*fields[-1])
    kept = carry.kept
    if self.fetched is not None:
      kept, _ = branch.run_if(p.host >= 0, self._fetch, kept, (p.host, p.residual))
    received = buffers_lib.read(carry.grads, p.inputs)
    grad, sums = self.passes.backward(p, self.weights, received, self._data(p), kept, carry.sums)
    written = buffers_lib.write(carry.grads, grad, p.output)
    return carry.replace(grads=written, kept=kept, sums=sums), grad

  def _data(self, p: ticks_lib.Pass) -> passes_lib.Data:
    batch, number = buffers_lib.read((self.batch, self.numbers), p.microbatch)
    return passes_lib.Data(batch, self.step, number)

  def _fetch(self, kept: Kept, slots: tuple[buffers_lib.Slot, buffers_lib.Slot]) -> Kept:
    """Brings residuals back from host memory."""
    source, to = slots
    value = buffers_lib.read(self.fetched, source)
    value = jax.device_put(value, jax.memory.Space.Device)
    return buffers_lib.put(kept, value, to)


def _offload(p: ticks_lib.Pass, offloaded: Kept, kept: Kept) -> tuple[Kept, Kept]:
  """Copies residuals of a redundant pass to host memory."""
  value = buffers_lib.read(kept, p.residual)
  value = jax.device_put(value, jax.memory.Space.Host)
  return buffers_lib.put(offloaded, value, p.host), kept


def _send(values: base.PyTree, pairs: list[tuple[int, int]]) -> base.PyTree:
  return jax.tree.map(lambda a: jax.lax.ppermute(a, STAGE, pairs), values)
