"""Sums the gradients of one stage over all shares of the batch.

The batch is cut for good into shares, each summed in its own accumulator. Here
the shares are added left to right in order of their index, whatever device they
lie on, so that the bits of the sum do not depend on who computed what.

One program per stage runs on a mesh of the devices that hold shares, in
pipeline order. It gathers the accumulators as flat buffers and adds them.
"""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from bamboo_jax import base

_P = jax.sharding.PartitionSpec


class ShareSum:
  """Sum of accumulators of one shape over all shares; collective.

  Nothing is donated: if a peer dies in the sum, the accumulators are still
  there.

  Attributes:
    devices: The devices that hold shares, without repetition, in mesh order.
  """

  def __init__(
      self, holders: Sequence[jax.Device], *, like: base.PyTree
  ) -> None:
    """Compiles the sum of accumulators like `like`, float32 without scalars."""
    self.devices = tuple(dict.fromkeys(holders))
    self._shares = {
        device: tuple(i for i, h in enumerate(holders) if h == device)
        for device in self.devices
    }
    # Devices with fewer shares than others fill up with one they have.
    self._num_slots = max(len(shares) for shares in self._shares.values())
    self._order = tuple(
        (self.devices.index(h), self._shares[h].index(i))
        for i, h in enumerate(holders)
    )
    self._like = like
    if len(holders) == 1:
      self._program = None
      return
    mesh = jax.sharding.Mesh(np.array(self.devices), ("pipeline",))
    self._sharding = jax.sharding.NamedSharding(mesh, _P("pipeline"))
    arguments = jax.tree.map(self._global_struct, [like] * self._num_slots)
    program = jax.shard_map(
        self._sum,
        mesh=mesh,
        in_specs=_P("pipeline"),
        out_specs=_P("pipeline"),
        check_vma=False,
    )
    self._program = jax.jit(program).lower(arguments).compile()

  def __call__(
      self, accumulators: Mapping[int, base.PyTree]
  ) -> dict[jax.Device, base.PyTree]:
    """Returns the sum, once on each local holder; local shares by index."""
    if self._program is None:
      return {self.devices[0]: accumulators[0]}
    local = [d for d in self.devices if self._shares[d][0] in accumulators]
    slots = []
    for slot in range(self._num_slots):
      held = [
          self._shares[d][min(slot, len(self._shares[d]) - 1)] for d in local
      ]
      slots.append(
          jax.tree.map(self._glue, self._like, *[accumulators[i] for i in held])
      )
    out = self._program(slots)
    split = lambda device: jax.tree.map(
        lambda a: next(
            s.data for s in a.addressable_shards if s.device == device
        ),
        out,
    )
    return {device: split(device) for device in local}

  def _sum(self, slots: list[base.PyTree]) -> base.PyTree:
    flat = jnp.stack(
        [
            jnp.concatenate([a.ravel() for a in jax.tree.leaves(slot)])
            for slot in slots
        ]
    )
    gathered = jax.lax.all_gather(flat, "pipeline")
    first, *rest = self._order
    total = gathered[first]
    for place in rest:
      total = total + gathered[place]
    leaves, treedef = jax.tree.flatten(self._like)
    ends = np.cumsum([leaf.size for leaf in leaves])[:-1]
    parts = [
        part.reshape(leaf.shape)
        for part, leaf in zip(jnp.split(total, ends), leaves, strict=True)
    ]
    return treedef.unflatten(parts)

  def _global_shape(self, like: jax.ShapeDtypeStruct) -> tuple[int, ...]:
    return (len(self.devices) * like.shape[0], *like.shape[1:])

  def _global_struct(self, like: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(
        self._global_shape(like), like.dtype, sharding=self._sharding
    )

  def _glue(self, like: jax.ShapeDtypeStruct, *parts: jax.Array) -> jax.Array:
    return jax.make_array_from_single_device_arrays(
        self._global_shape(like), self._sharding, list(parts)
    )
