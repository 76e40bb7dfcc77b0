"""What a device does in a tick: the passes of a stage, and the exchange.

A device runs the forward passes that the table lists, redundant ones included,
copies residuals of redundant ones to host memory, runs the backward pass, and
then exchanges the results with its neighbours. Passes and copies are in loops
with as many iterations as the table says; exchanges, which involve all devices,
are outside these loops.

The passes are those of the programs of units. The first stage begins with the
layers before the blocks, the prologue, and the last one ends with those behind
them, the epilogue. Both are in branches, so that no other stage computes them.
The prologue is recomputed in the backward pass. The epilogue runs forward and
backward in the backward pass: nothing of the size of the logits is kept, and
redundant forward passes, whose outputs no stage waits for, skip it.

All stages that a node holds are in the same arrays, and a pass takes the index
of its stage: so passes of an owner, of a shadow and of a node that took over are
the same code, and give the same bits.

A buffer is a tree of arrays [slots, ...]; the table of ticks gives the slots,
-1 for none.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
from typing import Any, TypeVar

import flax.struct
import jax
import jax.numpy as jnp

from bamboo_jax import base
from bamboo_jax.runtime.spmd import layout as layout_lib, ticks as ticks_lib
from bamboo_jax.runtime.stage import array_store, programs as programs_lib, spec as spec_lib

STAGE = "stage"  # The axis of the mesh.

Slot = int | jax.Array  # Of a buffer; mostly traced.
# Parameters and statistics of the layers of a unit, by position.
Unit = tuple[programs_lib.Layers, programs_lib.Layers]
# A microbatch, and what its random numbers follow from: the step, and its index.
_Data = tuple[base.PyTree, jax.Array, jax.Array]
_T = TypeVar("_T")
_U = TypeVar("_U")


class Parts(flax.struct.PyTreeNode):
  """Weights or sums of the stages of a device, by position of the layer.

  Weights are a `Unit` each, as passes read them, of the stages that the node owns, or of
  its stage and its replica. Sums are an `Accumulator` each, over the microbatches of a
  share, of the stages that it owns.

  Attributes:
    blocks: Of the layers of a block, arrays [stages of the node, blocks, ...].
    prologue: Of the layers before the blocks; zero on nodes that do not run them.
    epilogue: Of those behind them, likewise.
  """

  blocks: base.PyTree
  prologue: base.PyTree
  epilogue: base.PyTree


class Kept(flax.struct.PyTreeNode):
  """Values that forward passes keep for backward passes: arrays [slots, ...].

  Attributes:
    saved: `spec.Saved` of each block, arrays [slots, blocks, ...].
    values: Inputs of each block, then the output of the last, which the epilogue reads:
      arrays [slots, blocks + 1, ...].
  """

  saved: spec_lib.Saved
  values: base.PyTree


class Arrays(flax.struct.PyTreeNode):
  """Arrays of a device by kind, see `ticks.KINDS`, and its sums; None without.

  A scan carries those in device memory from tick to tick. A segment leaves others in host
  memory: values sent in each tick, and residuals of redundant passes.

  Attributes:
    activations: Inputs of forward passes, received or local.
    gradients: Gradients of outputs, received or local.
  """

  activations: base.PyTree
  gradients: base.PyTree
  residuals: base.PyTree
  sums: base.PyTree = None


class Given(flax.struct.PyTreeNode):
  """What the passes of a step read on a device.

  Attributes:
    batch: The microbatches of its pipeline, arrays [microbatches, ...].
    first: Index of the first one in the global batch, uint32.
    step: uint32.
  """

  weights: Parts
  batch: base.PyTree
  first: Any
  step: Any


def run_if(
    predicate: bool | jax.Array, run: Callable[[_T, _U], _T], carry: _T, inputs: _U
) -> tuple[_T, _U]:
  """Returns `run(carry, inputs)` if `predicate` holds, else `carry`: changes it in place.

  XLA copies all operands of a conditional, taken or not: in every tick that would
  be all buffers and all sums of gradients. Operands of a loop stay in place. So
  this is a loop with zero iterations or one.

  Args:
    predicate: A scalar, which may differ between devices.
    run: Contains no collective; returns a tree like `carry`.
    carry: Arrays to be changed, in place.
    inputs: Small arrays on which everything else that `run` computes depends.
      XLA hoists loop-invariant code out of a loop, where it would always run;
      so these are made to look variant.

  Returns:
    The result, and `inputs`. Code that reads these instead of the argument runs
    after this branch, so nothing is copied because it might run before.
  """

  def body(i: jax.Array, state: tuple[_T, _U]) -> tuple[_T, _U]:
    carry, inputs = state
    seem = lambda a: jnp.where(i == 0, a, jnp.zeros_like(a))
    inputs = jax.tree.map(seem, inputs)
    return run(carry, inputs), inputs

  return jax.lax.fori_loop(0, jnp.where(predicate, 1, 0), body, (carry, inputs))


def read(buffer: base.PyTree, *slots: Slot) -> base.PyTree:
  """Returns the value in a slot; undefined if it is -1."""

  def take(array: jax.Array) -> jax.Array:
    shape = array.shape[len(slots) :]
    start, sizes = (*slots, *[0] * len(shape)), (*[1] * len(slots), *shape)
    return jax.lax.dynamic_slice(array, start, sizes).reshape(shape)

  return jax.tree.map(take, buffer)


def put(buffer: base.PyTree, value: base.PyTree, *slots: Slot) -> base.PyTree:
  """Returns the buffer with `value` in a slot, which must not be -1."""

  def update(array: jax.Array, part: jax.Array) -> jax.Array:
    start = (*slots, *[0] * part.ndim)
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


class StagePasses:
  """The passes of a stage, whose index may be traced.

  Attributes:
    activation: Shapes of the values between stages.
    kept: Shapes of the values kept in one slot.
    pack: Returns the weights of a node as arrays [1, ...], from its stages in order,
      the number of stages that its arrays hold, and parameters and statistics by the
      name of the layer; those that are not there are zero. On the device of the node.
    unpack: Returns the sums of a stage by unit, from the stage, its place among those
      of the node, and the node's sums, arrays [1, ...].
  """

  def __init__(self, spec: spec_lib.StageSpec, layout: layout_lib.BlockLayout) -> None:
    """`spec` is the whole model."""
    self.spec, self.layout = spec, layout
    # Both run forward and backward in one pass: to keep nothing would save nothing.
    self._units = Parts(
        self._make_unit(layout.block, spec.remat),
        self._make_unit(layout.prologue, "full"),
        self._make_unit(layout.epilogue, "full"),
    )
    self.activation = spec.model.input_shapes(spec.batch)[layout.first]
    saved = repeat(self._units.blocks.saved, layout.count)
    self.kept = Kept(saved, repeat(self.activation, layout.count + 1))
    self.pack = jax.jit(self._pack, static_argnums=(0, 1))
    self.unpack = jax.jit(self._unpack, static_argnums=(0, 1))

  def weights(self, num_held: int) -> Parts:
    """Returns the shapes of the weights of a device that holds as many stages."""
    parts = jax.tree.map(lambda unit: (unit.copies, unit.unit.shapes.stats), self._units)
    return parts.replace(blocks=repeat(parts.blocks, num_held, self.layout.count))

  def sums(self, num_owned: int) -> Parts:
    """Returns the shapes of the sums of a device that owns as many stages."""
    parts = jax.tree.map(lambda unit: unit.unit.accumulator, self._units)
    return parts.replace(blocks=repeat(parts.blocks, num_owned, self.layout.count))

  def run_tick(
      self, given: Given, fetched: Kept | None, state: tuple[Arrays, Arrays], row: jax.Array
  ) -> tuple[tuple[Arrays, Arrays], tuple[base.PyTree, base.PyTree]]:
    """Runs a tick; returns the next `state`, and the values sent to both sides.

    Args:
      fetched: Residuals that earlier programs left in host memory.
      state: The carry, and the buffers in host memory, of which this changes those for
        residuals of redundant forward passes.
      row: int32[ticks.SHAPE], see `TickTable.as_array`.
    """
    carry, host = state
    nothing = zeros_like(self.activation)
    last = ticks_lib.NUM_FORWARDS  # Place of the backward pass.
    num_forwards = jnp.sum(row[:last, 0] >= 0)
    forward = lambda k, s: self._run_forward(given, ticks_lib.Pass(*row[k]), *s)
    carry, outputs = jax.lax.fori_loop(0, num_forwards, forward, (carry, nothing))
    num_copied = jnp.array(0)
    if host.residuals is not None:  # On a GPU beside the backward pass.
      offload = lambda k, s: _offload(ticks_lib.Pass(*row[k]), *s)
      # The own pass, if any, is the first, and stays.
      first = jnp.where(ticks_lib.Pass(*row[0]).host < 0, 1, 0)
      copied = (host.residuals, carry.residuals, num_copied)
      offloaded, kept, num_copied = jax.lax.fori_loop(first, num_forwards, offload, copied)
      host, carry = host.replace(residuals=offloaded), carry.replace(residuals=kept)

    def backward(state: tuple[Arrays, base.PyTree], row: jax.Array) -> tuple[Arrays, base.PyTree]:
      return self._run_backward(given, fetched, ticks_lib.Pass(*row[last]), state[0])

    (carry, grads), row = run_if(row[last, 0] >= 0, backward, (carry, nothing), row)
    # XLA is free to send before the backward pass. Then outputs would make this
    # stage wait for the stages that run a forward pass in this tick, and the
    # passes of a tick would run one after the other. So outputs depend on later
    # results, and both on the copies to the host: these are in the same CUDA graph then.
    seem = lambda a: jnp.where((row[0, 0] >= -1) & (num_copied >= 0), a, jnp.zeros_like(a))
    outputs, grads = jax.tree.map(seem, (outputs, grads))
    carry = carry.replace(
        activations=write(carry.activations, _send(outputs, 1), row[-1, 0]),
        gradients=write(carry.gradients, _send(grads, -1), row[-1, 1]),
    )
    return (carry, host), (outputs, grads)

  def _run_forward(
      self, given: Given, p: ticks_lib.Pass, carry: Arrays, sent: base.PyTree
  ) -> tuple[Arrays, base.PyTree]:
    """Runs a forward pass; returns the new carry, and the outputs to send."""
    first, data, weights = self.layout.first_layer(p.stage), _find_data(given, p), given.weights
    enter = lambda: self._forward("prologue", weights.prologue, None, data, 0)[0]
    entered = jax.lax.cond(p.stage == 0, enter, lambda: read(carry.activations, p.inputs))

    def run(i: jax.Array, state: base.PyTree) -> base.PyTree:
      inputs, kept = state
      own = read(weights.blocks, p.hold, i)
      index = first + i * self.layout.period
      outputs, saved = self._forward("blocks", own, inputs, data, index)
      keep = lambda buffer, value: put(buffer, value, p.residual, i)
      return outputs, Kept(keep(kept.saved, saved), keep(kept.values, inputs))

    outputs, kept = jax.lax.fori_loop(0, self._count(p), run, (entered, carry.residuals))
    values = put(kept.values, outputs, p.residual, self.layout.count)
    activations = write(carry.activations, outputs, p.output)
    is_own = p.host < 0  # Outputs of redundant passes are not sent.
    sent = jax.tree.map(lambda new, old: jnp.where(is_own, new, old), outputs, sent)
    return carry.replace(activations=activations, residuals=kept.replace(values=values)), sent

  def _run_backward(
      self, given: Given, fetched: Kept | None, p: ticks_lib.Pass, carry: Arrays
  ) -> tuple[Arrays, base.PyTree]:
    """Runs a backward pass; returns the new carry, and the gradient to send."""
    kept, sums, data, weights = carry.residuals, carry.sums, _find_data(given, p), given.weights
    if fetched is not None:
      bring = lambda kept, slots: put(
          kept, jax.device_put(read(fetched, slots[0]), jax.memory.Space.Device), slots[1]
      )
      kept, _ = run_if(p.host >= 0, bring, kept, (p.host, p.residual))
    grad = read(carry.gradients, p.inputs)

    def leave(state: base.PyTree, outputs: base.PyTree) -> base.PyTree:
      index = self.layout.epilogue.start
      _, saved = self._forward("epilogue", weights.epilogue, outputs, data, index)
      return self._backward("epilogue", weights.epilogue, outputs, saved, None, state[1])

    outputs = read(kept.values, p.residual, self.layout.count)
    is_last = p.stage == self.layout.num_stages - 1
    (grad, epilogue), _ = run_if(is_last, leave, (grad, sums.epilogue), outputs)

    def run(j: jax.Array, state: base.PyTree) -> base.PyTree:
      (grad, total), i = state, self.layout.count - 1 - j
      own = read(weights.blocks, p.hold, i)
      start, saved = read((kept.values, kept.saved), p.residual, i)
      before = read(total, p.hold, i)
      grad, after = self._backward("blocks", own, start, saved, grad, before)
      return grad, put(total, after, p.hold, i)

    grad, blocks = jax.lax.fori_loop(0, self._count(p), run, (grad, sums.blocks))

    def enter(total: base.PyTree, inputs: tuple[base.PyTree, base.PyTree]) -> base.PyTree:
      grad, batch = inputs
      _, saved = self._forward("prologue", weights.prologue, None, (batch, *data[1:]), 0)
      return self._backward("prologue", weights.prologue, None, saved, grad, total)[1]

    prologue, _ = run_if(p.stage == 0, enter, sums.prologue, (grad, data[0]))
    sums, gradients = Parts(blocks, prologue, epilogue), write(carry.gradients, grad, p.output)
    return carry.replace(gradients=gradients, residuals=kept, sums=sums), grad

  def _make_unit(self, layers: range, remat: str) -> programs_lib.UnitPrograms:
    first, last = layers.start, layers.stop
    unit = dataclasses.replace(self.spec, first=first, last=last, remat=remat, is_unit=True)
    return programs_lib.UnitPrograms(unit)

  def _forward(
      self, part: str, weights: Unit, inputs: base.PyTree, data: _Data, index: Slot
  ) -> tuple[base.PyTree, spec_lib.Saved]:
    unit, (batch, *numbers) = getattr(self._units, part), data
    batch = {key: batch[key] for key in unit.unit.batch_keys}
    numbers.append(jnp.asarray(index, jnp.uint32))
    _, *result = unit.forward(programs_lib.make_token(), *weights, inputs, batch, *numbers)
    return tuple(result)

  def _backward(self, part: str, weights: Unit, *values: base.PyTree) -> Sequence[base.PyTree]:
    """Returns the gradient of the input, and the sums.

    `values` are the input, saved values, gradient of the output, and former sums.
    """
    unit = getattr(self._units, part)
    return unit.backward(programs_lib.make_token(), weights[0], *values)[1:]

  def _count(self, p: ticks_lib.Pass) -> jax.Array:
    """Returns the number of blocks of a stage, as a value that is traced.

    XLA makes a loop part of a CUDA graph only if it does not know the trip count.
    """
    return jnp.where(p.stage < 0, 0, self.layout.count)

  def _pack(
      self,
      stages: Sequence[base.StageId],
      num_held: int,
      states: Mapping[str, tuple[base.PyTree, base.PyTree]],
  ) -> Parts:
    packed, names = zeros_like(self.weights(num_held)), self.spec.model.layer_names
    for hold, stage in enumerate(stages):
      for part, at, layers in self.layout.parts_of(stage, hold):
        if any(names[i] not in states for i in layers):
          continue
        own = tuple(zip(*(states[names[i]] for i in layers), strict=True)) or ((), ())
        buffer = getattr(packed, part)
        own = jax.tree.map(lambda like, a: a.astype(like.dtype), buffer, own)
        packed = packed.replace(**{part: put(buffer, own, *at)})
    return jax.tree.map(lambda a: a[None], packed)

  def _unpack(self, stage: base.StageId, hold: int, sums: Parts) -> dict[int, spec_lib.Accumulator]:
    totals = {}
    for name, at, layers in self.layout.parts_of(stage, hold):
      part = read(getattr(sums, name), 0, *at)
      for unit in self._units_of(layers):
        own = slice(unit.first - layers.start, unit.last - layers.start)
        totals[unit.first] = spec_lib.Accumulator(
            part.grads[own], part.stats[own], part.loss if unit.is_last else None
        )
    return totals

  def load_sums(
      self,
      stage: base.StageId,
      hold: int,
      sums: Parts,
      totals: Mapping[array_store.Sum, spec_lib.Accumulator],
      share: base.ShareId,
  ) -> None:
    """Writes the sums of a stage, if there are some, into those of its node, in NumPy [1, ...]."""
    for name, at, layers in self.layout.parts_of(stage, hold):
      firsts = [unit.first for unit in self._units_of(layers)]
      own = [totals[first, share] for first in firsts if (first, share) in totals]
      if own:
        grads, stats = (sum((getattr(a, f) for a in own), ()) for f in ("grads", "stats"))
        part = spec_lib.Accumulator(grads, stats, own[-1].loss)
        jax.tree.map(lambda a, v, at=at: a.__setitem__((0, *at), v), getattr(sums, name), part)

  def _units_of(self, layers: range) -> tuple[spec_lib.StageSpec, ...]:
    """Returns the units of rows that are these layers."""
    return dataclasses.replace(self.spec, first=layers.start, last=layers.stop).units


def _find_data(given: Given, p: ticks_lib.Pass) -> _Data:
  number = given.first + jnp.asarray(p.microbatch, jnp.uint32)
  return read(given.batch, p.microbatch), given.step, number


def _offload(
    p: ticks_lib.Pass, offloaded: Kept, kept: Kept, count: jax.Array
) -> tuple[Kept, Kept, jax.Array]:
  """Copies residuals of a redundant pass to host memory, and counts it."""
  value = jax.device_put(read(kept, p.residual), jax.memory.Space.Host)
  return put(offloaded, value, p.host), kept, count + (p.host >= 0)


def _send(values: base.PyTree, to: int) -> base.PyTree:
  """Sends to the next node of the ring, or with `to=-1` to the one before; returns what arrives."""
  count = jax.lax.axis_size(STAGE)
  pairs = [(n, (n + to) % count) for n in range(count)]
  return jax.tree.map(lambda a: jax.lax.ppermute(a, STAGE, pairs), values)
