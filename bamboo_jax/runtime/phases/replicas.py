"""Replicas: copies of a stage's state on another node, equal to the bit."""

from collections.abc import Mapping

import jax
import numpy as np

from bamboo_jax import base
from bamboo_jax.runtime import engine as engine_lib
from bamboo_jax.runtime import node as node_lib
from bamboo_jax.runtime.stage import spec as spec_lib


def move_slots(
    node: node_lib.Node, stage: int, *, memory_kind: str
) -> spec_lib.StageState:
  """Returns the state of a stage with its slots in a kind of memory."""
  state = node.state[stage]
  place = jax.sharding.SingleDeviceSharding(
      node.device, memory_kind=memory_kind
  )
  return state.replace(slots=jax.device_put(state.slots, place))


def copy_state(
    engine: engine_lib.Engine, stage: int, *, source: int, to: int
) -> int:
  """Copies the state of a stage between nodes; returns the bytes moved."""
  state = move_slots(engine.nodes[source], stage, memory_kind="device")
  node = engine.nodes[to]
  node.state[stage] = jax.device_put(state, node.device, may_alias=False)
  return sum(a.nbytes for a in jax.tree.leaves(state))


def check_replicas(engine: engine_lib.Engine, step: int) -> None:
  """Raises `base.ReplicaMismatchError` unless replicas equal owners; blocks."""
  for owners, shadows in zip(engine.owners, engine.shadows, strict=True):
    for stage, shadow in sorted(shadows.items()):
      name = find_difference(
          spec_lib.split_layers(engine.nodes[owners[stage]].state[stage]),
          spec_lib.split_layers(engine.nodes[shadow].state[stage]),
      )
      if name is not None:
        raise base.ReplicaMismatchError(
            f"After step {step} the replica of layer {name!r} (stage {stage}) "
            f"on node {shadow} differs from its owner, node {owners[stage]}."
        )


def find_difference(
    want: Mapping[str, spec_lib.LayerState],
    got: Mapping[str, spec_lib.LayerState],
) -> str | None:
  """Returns the first layer of `want` with other bits in `got`, or None."""
  for name, layer in want.items():
    pairs = zip(jax.tree.leaves(layer), jax.tree.leaves(got[name]), strict=True)
    if not all(_same_bits(a, b) for a, b in pairs):
      return name
  return None


def _same_bits(a: jax.Array, b: jax.Array) -> bool:
  return np.asarray(a).tobytes() == np.asarray(b).tobytes()
