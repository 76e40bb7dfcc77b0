"""The arguments of the program of a step: shapes and values."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from bamboo_jax.runtime import node as node_lib
from bamboo_jax.runtime.spmd import buffers as buffers_lib
from bamboo_jax.runtime.spmd import state as state_lib
from bamboo_jax.runtime.spmd import trees

Batch = dict[str, jax.Array]
PartitionSpec = jax.sharding.PartitionSpec


@dataclasses.dataclass(frozen=True)
class Arguments:
  """State, batch, index of the step, and a buffer in host memory.

  Attributes:
    num_microbatches: In each pipeline.
    host: Shapes of the buffer of one device, with a slot for the residuals of
      each microbatch of its pipeline; None without redundant forward passes.
  """

  placement: state_lib.Placement
  num_microbatches: int
  host: buffers_lib.Kept | None

  def shapes(
      self,
  ) -> tuple[
      state_lib.ProgramState,
      Batch,
      jax.ShapeDtypeStruct,
      buffers_lib.Kept | None,
  ]:
    """Returns shapes and shardings.

    Those of the batch are [pipelines, microbatches of the pipeline, ...], those
    of the buffer [pipelines, stages, slots * blocks, ...].
    """
    spec = self.placement.spec
    num_pipelines, num_stages = self.placement.mesh.devices.shape
    batch = trees.repeat(
        {key: spec.batch[key] for key in spec.batch_keys},
        *(num_pipelines, self.num_microbatches),
    )
    step = jax.ShapeDtypeStruct((), jnp.uint32)
    host = trees.repeat(self.host, num_pipelines, num_stages)
    return (
        self.placement.shapes(),
        self._place(batch, PartitionSpec(state_lib.PIPELINE)),
        self._place(step, PartitionSpec()),
        self._place(host, PartitionSpec(*state_lib.AXES), kind="pinned_host"),
    )

  def place_batch(self, feed: node_lib.FeedFn) -> Batch:
    """Returns the microbatches of a step on their devices."""
    keys, shapes = self.placement.spec.batch_keys, self.shapes()[1]
    num_pipelines, _ = self.placement.mesh.devices.shape
    data = [feed(m, keys) for m in range(num_pipelines * self.num_microbatches)]
    batch = {}
    for key, like in shapes.items():
      array = np.stack([entry[key] for entry in data]).reshape(like.shape)
      batch[key] = jax.make_array_from_callback(
          like.shape, like.sharding, array.__getitem__
      )
    return batch

  def make_host_buffer(self) -> buffers_lib.Kept | None:
    """Returns an empty buffer; None without redundant forward passes."""
    make = lambda a: jax.make_array_from_callback(
        a.shape, a.sharding, np.zeros(a.shape, a.dtype).__getitem__
    )
    return jax.tree.map(make, self.shapes()[3])

  def _place(
      self, tree: object, partition: PartitionSpec, *, kind: str | None = None
  ) -> object:
    sharding = jax.sharding.NamedSharding(
        self.placement.mesh, partition, memory_kind=kind
    )
    place = lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharding)
    return jax.tree.map(place, tree)
