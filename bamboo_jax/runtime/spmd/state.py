"""What the program holds between steps: the state of all layers, by place.

The blocks of all stages are one global array [stages, blocks, ...] for each
array of a block; every device holds the row of its stage. The replica of the
next stage is a second such array, with rows shifted by one. Where a stage has
fewer blocks than others its row ends with zeros. All devices hold the layers of
both ends, which only the first and the last stage run; these need no replica.
"""

from collections.abc import Callable, Mapping
import dataclasses
import functools

import flax.struct
import jax
import numpy as np

from bamboo_jax import base
from bamboo_jax.runtime.spmd import layout as layout_lib
from bamboo_jax.runtime.stage import spec as spec_lib

PartitionSpec = jax.sharding.PartitionSpec
LayerState = spec_lib.LayerState

AXES = PIPELINE, STAGE = ("pipeline", "stage")  # Of the mesh.


@flax.struct.dataclass
class ProgramState:
  """The state of a model, equal on all pipelines.

  Attributes:
    blocks: The layers of a block; arrays are [stages, blocks, ...].
    replica: The same of the stage behind, or of stage 0 for the last; None
      without replicas.
    ends: Layers of both ends by name.
  """

  blocks: list[LayerState]
  replica: list[LayerState] | None
  ends: dict[str, LayerState]


@dataclasses.dataclass(frozen=True)
class Placement:
  """Where the layers of a model are on a mesh, by pipeline and stage.

  `spec` is the whole model as one stage; with `replicas` devices hold the
  layers of the next stage too.
  """

  spec: spec_lib.StageSpec
  layout: layout_lib.Layout
  mesh: jax.sharding.Mesh
  replicas: bool

  @property
  def partition(self) -> ProgramState:
    """How the arrays of a state are split over the mesh."""
    by_stage = PartitionSpec(STAGE)
    replica = by_stage if self.replicas else None
    return ProgramState(by_stage, replica, PartitionSpec())

  def shapes(self) -> ProgramState:
    """Returns the shapes of a state, with their shardings."""
    leading = (self.layout.num_stages, self.layout.max_count)

    def split(
        sharding: jax.sharding.Sharding, *arrays: base.PyTree
    ) -> base.PyTree:
      shape = (*leading, *arrays[0].shape)
      return jax.ShapeDtypeStruct(shape, arrays[0].dtype, sharding=sharding)

    def copy(
        sharding: jax.sharding.Sharding, array: base.PyTree
    ) -> base.PyTree:
      return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding)

    return self._assemble(spec_lib.split_layers(self.spec.state), split, copy)

  def place(self, layers: Mapping[str, LayerState]) -> ProgramState:
    """Returns the state made of copies of all layers, given by name."""
    num_blocks = self.layout.max_count

    def split(
        sharding: jax.sharding.Sharding, *arrays: base.PyTree
    ) -> base.PyTree:
      def row(index: tuple[slice, ...]) -> np.ndarray:
        first = (index[0].start or 0) * num_blocks
        return np.stack(arrays[first : first + num_blocks])[None]

      shape = (self.layout.num_stages, num_blocks, *arrays[0].shape)
      return jax.make_array_from_callback(shape, sharding, row)

    def copy(
        sharding: jax.sharding.Sharding, array: base.PyTree
    ) -> base.PyTree:
      return jax.make_array_from_callback(
          array.shape, sharding, lambda index: array.copy()
      )

    return self._assemble(jax.tree.map(np.asarray, dict(layers)), split, copy)

  def read_own(
      self, state: ProgramState, pipeline: int, stage: int
  ) -> dict[str, LayerState]:
    """Returns the layers of a stage by name, copied to host memory."""
    return self.read(state.blocks, state.ends, (pipeline, stage), stage)

  def read_replica(
      self, state: ProgramState, pipeline: int, stage: int
  ) -> dict[str, LayerState]:
    """Returns the layers that the node of `stage` holds of the next stage."""
    of = (stage + 1) % self.layout.num_stages
    return self.read(state.replica, state.ends, (pipeline, stage), of)

  def read(
      self,
      blocks: list[base.PyTree],
      ends: Mapping[str, base.PyTree],
      place: tuple[int, int],
      of: int,
  ) -> dict[str, base.PyTree]:
    """Returns a device's copy of the layers of a stage, in host memory.

    `place` is pipeline and stage of the device, `of` the stage whose layers its
    row of `blocks` has.
    """
    local = functools.partial(read_local, device=self.mesh.devices[place])
    rows = jax.tree.map(local, blocks)
    found = {}
    for i in self.layout.layers(of):
      name = self.spec.model.layer_names[i]
      if name in ends:
        found[name] = jax.tree.map(local, ends[name])
      else:
        behind = i - self.layout.first_layers[of]
        block, position = divmod(behind, self.layout.blocks.period)
        take = lambda a, block=block: a[0, block]
        found[name] = jax.tree.map(take, rows[position])
    return found

  def _assemble(
      self,
      layers: Mapping[str, LayerState],
      split: Callable[..., base.PyTree],
      copy: Callable[..., base.PyTree],
  ) -> ProgramState:
    """Returns a state.

    Args:
      layers: The layers by name.
      split: Takes a sharding and the arrays of all stages, those of all blocks
        of a stage after each other; returns a global array.
      copy: Takes a sharding and an array; returns one that is everywhere.
    """
    names = self.spec.model.layer_names
    by_stage = jax.sharding.NamedSharding(self.mesh, PartitionSpec(STAGE))
    everywhere = jax.sharding.NamedSharding(self.mesh, PartitionSpec())

    def blocks(shift: int) -> list[LayerState]:
      return [
          jax.tree.map(
              functools.partial(split, by_stage),
              *self._all_blocks(layers, position, shift),
          )
          for position in range(self.layout.blocks.period)
      ]

    return ProgramState(
        blocks=blocks(0),
        replica=blocks(1) if self.replicas else None,
        ends={
            names[i]: jax.tree.map(
                functools.partial(copy, everywhere), layers[names[i]]
            )
            for i in self.layout.ends
        },
    )

  def _all_blocks(
      self, layers: Mapping[str, LayerState], position: int, shift: int
  ) -> list[LayerState]:
    """Returns a layer of all blocks, beginning with those of stage `shift`."""
    layout, names = self.layout, self.spec.model.layer_names
    padding = jax.tree.map(
        lambda a: np.zeros(a.shape, a.dtype),
        layers[names[layout.blocks.first + position]],
    )
    found = []
    for stage in range(layout.num_stages):
      of = (stage + shift) % layout.num_stages
      for block in range(layout.max_count):
        index = layout.layer(of, block, position)
        found.append(padding if index is None else layers[names[index]])
    return found


def read_local(array: jax.Array, device: jax.Device) -> np.ndarray:
  """Returns a copy of the part of a global array that a device holds."""
  return next(
      np.array(shard.data)
      for shard in array.addressable_shards
      if shard.device == device
  )
