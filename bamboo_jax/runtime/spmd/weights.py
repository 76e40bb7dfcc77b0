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
from bamboo_jax.runtime.spmd import (
    buffers as buffers_lib,
    layout as layout_lib,
    passes as passes_lib,
    program as program_lib,
)
from bamboo_jax.runtime.stage import array_store, spec as spec_lib

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
  ) -> Callable[[States], passes_lib.DeviceWeights]:
    """Returns a function that packs a node's weights to arrays [1, ...].

    `stages` are the stages that the node owns or shadows, in order; `known` are
    those whose states are given. The weights of other stages are zero.
    """
    key = ("pack", device, stages, known, program.sizes.num_held)
    pack = functools.partial(_pack, program, stages)
    return self._find(key, pack, device, lambda: _state_shapes(program, known))

  def find_unpack(
      self, program: program_lib.SegmentProgram, device: jax.Device, stage: base.StageId, hold: int
  ) -> Callable[[buffers_lib.MicrobatchSums], dict[int, spec_lib.Accumulator]]:
    """Returns a function that slices a stage's sums, by unit, out of a node's.

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
    params = {name: state[name].params for name in own}
    shapes[stage] = (params, {name: state[name].stats for name in own})
  return shapes


def _pack(
    program: program_lib.SegmentProgram, stages: Sequence[base.StageId], held: States
) -> passes_lib.DeviceWeights:
  layout, names = program.layout, program.spec.model.layer_names
  zeros = buffers_lib.zeros_like(program.weights)
  holds = (*stages, *[None] * (program.sizes.num_held - len(stages)))
  nothing = jax.tree.map(lambda a: a[0, 0], zeros.blocks)

  def unit(stage: base.StageId, layers: range) -> passes_lib.Unit:
    params, stats = held[stage]
    return tuple(params[names[i]] for i in layers), tuple(stats[names[i]] for i in layers)

  found: list[passes_lib.Unit] = []
  for stage in holds:
    if stage is not None and stage in held:
      found += (unit(stage, layers) for layers in layout.blocks_of(stage))
    else:
      found += [nothing] * layout.count
  shape = (1, len(holds), layout.count)
  blocks = jax.tree.map(
      lambda zero, *a: jnp.stack([part.astype(zero.dtype) for part in a]).reshape(
          *shape, *a[0].shape
      ),
      *(nothing, *found),
  )
  put = lambda zero, a: a[None].astype(zero.dtype)
  ends = {}
  for name, stage in (("prologue", 0), ("epilogue", layout.num_stages - 1)):
    ends[name] = zero = getattr(zeros, name)
    own = unit(base.StageId(stage), getattr(layout, name)) if stage in held else zero
    ends[name] = jax.tree.map(put, zero, own)
  return passes_lib.DeviceWeights(blocks, **ends)


def _unpack(
    program: program_lib.SegmentProgram,
    stage: base.StageId,
    hold: int,
    sums: buffers_lib.MicrobatchSums,
) -> dict[int, spec_lib.Accumulator]:
  totals = {}
  for name, at, layers in _parts(program, stage, hold):
    part = jax.tree.map(lambda a, at=at: a[at], getattr(sums, name))
    for unit in layout_lib.units_of(program.spec, layers):
      own = slice(unit.first - layers.start, unit.last - layers.start)
      totals[unit.first] = spec_lib.Accumulator(
          part.grads[own], part.stats[own], part.loss if unit.is_last else None
      )
  return totals


def load_sums(
    program: program_lib.SegmentProgram,
    stage: base.StageId,
    hold: int,
    sums: buffers_lib.MicrobatchSums,
    totals: Mapping[array_store.Sum, spec_lib.Accumulator],
    share: base.ShareId,
) -> None:
  """Writes the sums of a stage, if there are some, into those of a node, NumPy arrays [1, ...]."""
  for name, at, layers in _parts(program, stage, hold):
    units = layout_lib.units_of(program.spec, layers)
    own = [totals[u.first, share] for u in units if (u.first, share) in totals]
    if own:
      grads, stats = (sum((getattr(a, f) for a in own), ()) for f in ("grads", "stats"))
      part = spec_lib.Accumulator(grads, stats, own[-1].loss)
      jax.tree.map(lambda a, v, at=at: a.__setitem__(at, v), getattr(sums, name), part)


def _parts(
    program: program_lib.SegmentProgram, stage: base.StageId, hold: int
) -> list[tuple[str, tuple[int, ...], range]]:
  """Returns where the sums of some layers of a stage are: field and index."""
  layout = program.layout
  parts: list[tuple[str, tuple[int, ...], range]] = [
      ("blocks", (0, hold, i), layers) for i, layers in enumerate(layout.blocks_of(stage))
  ]
  if stage == 0:
    parts.insert(0, ("prologue", (0,), layout.prologue))
  if stage == layout.num_stages - 1:
    parts.append(("epilogue", (0,), layout.epilogue))
  return parts
