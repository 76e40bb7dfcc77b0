"""Packs the state of a node to a program's arrays, and unpacks its sums.

Weights that passes read only in a lower precision are cast once per step. Both
are small programs on the device of the node, compiled once for each device and
set of stages.
"""

from collections.abc import Callable, Mapping, Sequence
import functools
from typing import Any

import jax
import jax.numpy as jnp

from bamboo_jax import base
from bamboo_jax.runtime.spmd import buffers as buffers_lib, program as program_lib, tick as tick_lib
from bamboo_jax.runtime.stage import spec as spec_lib

# Parameters and statistics of layers by name, by stage.
States = Mapping[base.StageId, tuple[dict[str, base.PyTree], dict[str, base.PyTree]]]


class Packing:
  """Pack and unpack programs of a model, shared by programs of any size."""

  def __init__(self) -> None:
    self._programs: dict[tuple[Any, ...], jax.stages.Compiled] = {}

  def find_pack(
      self,
      program: program_lib.SegmentProgram,
      device: jax.Device,
      stages: tuple[base.StageId, ...],
      known: tuple[base.StageId, ...],
  ) -> Callable[[States], tick_lib.DeviceWeights]:
    """Returns a function that packs a node's weights to arrays [1, ...].

    `stages` are the stages that the node owns or shadows, in order; `known` are
    those whose states are given. The weights of other stages are zero.
    """
    key = ("pack", device, stages, known, program.sizes.num_held)
    pack = functools.partial(_pack, program, stages)
    return self._find(key, pack, device, lambda: _state_shapes(program, known))

  def find_unpack(
      self, program: program_lib.SegmentProgram, device: jax.Device, stage: base.StageId, hold: int
  ) -> Callable[[buffers_lib.MicrobatchSums], spec_lib.Accumulator]:
    """Returns a function that slices a stage's sums out of a node's.

    The node's sums are arrays [1, ...], see `PipelineRun.sums`.
    """
    key = ("unpack", device, stage, hold, program.sizes.num_owned)
    unpack = functools.partial(_unpack, program, stage, hold)
    like = lambda: buffers_lib.repeat(program.carry.sums, 1)
    return self._find(key, unpack, device, like)

  def _find(
      self,
      key: tuple[Any, ...],
      run: Callable[[base.PyTree], base.PyTree],
      device: jax.Device,
      like: Callable[[], base.PyTree],
  ) -> jax.stages.Compiled:
    if key not in self._programs:
      place = jax.sharding.SingleDeviceSharding(device)
      shapes = jax.tree.map(
          lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=place), like()
      )
      self._programs[key] = jax.jit(run).trace(shapes).lower().compile()
    return self._programs[key]


def _state_shapes(program: program_lib.SegmentProgram, stages: Sequence[base.StageId]) -> States:
  names, state = program.spec.model.layer_names, program.spec.state
  shapes = {}
  for stage in stages:
    own = [names[i] for i in program.layout.layers(stage)]
    params = {name: state.params[name] for name in own}
    shapes[stage] = (params, {name: state.stats[name] for name in own})
  return shapes


def _pack(
    program: program_lib.SegmentProgram, stages: Sequence[base.StageId], held: States
) -> tick_lib.DeviceWeights:
  layout, names = program.layout, program.spec.model.layer_names
  zeros = buffers_lib.zeros_like(program.weights)
  holds = (*stages, *[None] * (program.sizes.num_held - len(stages)))

  def find(stage: base.StageId | None, block: int, position: int) -> base.PyTree:
    if stage is None or stage not in held:
      return jax.tree.map(lambda a: a[0, 0], zeros.blocks[position])
    index = layout.first_layer(stage) + block * layout.blocks.period + position
    return tuple(tree[names[index]] for tree in held[stage])

  def stack(position: int) -> base.PyTree:
    found = [find(stage, block, position) for stage in holds for block in range(layout.count)]
    shape = (1, len(holds), layout.count)
    return jax.tree.map(
        lambda zero, *a: jnp.stack([part.astype(zero.dtype) for part in a]).reshape(
            *shape, *a[0].shape
        ),
        *(zeros.blocks[position], *found),
    )

  ends = {name: jax.tree.map(lambda a: a[None], e) for name, e in zeros.ends.items()}
  put = lambda zero, a: a[None].astype(zero.dtype)
  for params, stats in held.values():
    for name in params.keys() & ends.keys():
      own = (params[name], stats[name])
      ends[name] = jax.tree.map(put, ends[name], own)
  return tick_lib.DeviceWeights([stack(j) for j in range(layout.blocks.period)], ends)


def _unpack(
    program: program_lib.SegmentProgram,
    stage: base.StageId,
    hold: int,
    sums: buffers_lib.MicrobatchSums,
) -> spec_lib.Accumulator:
  layout, names = program.layout, program.spec.model.layer_names
  grads, stats = {}, {}
  for i in layout.layers(stage):
    name = names[i]
    if name in sums.end_grads:
      take = lambda a: a[0]
      found = (sums.end_grads[name], sums.end_stats[name])
    else:
      block, j = divmod(i - layout.first_layer(stage), layout.blocks.period)
      take = lambda a, block=block: a[0, hold, block]
      found = (sums.grads[j], sums.stats[j])
    found = jax.tree.map(take, found)
    some = lambda a: a.reshape(a.shape or (1,))  # No scalars in accumulators.
    grads[name], stats[name] = jax.tree.map(some, found)
  is_last = stage == layout.num_stages - 1
  return spec_lib.Accumulator(grads, stats, sums.loss[0] if is_last else None)
