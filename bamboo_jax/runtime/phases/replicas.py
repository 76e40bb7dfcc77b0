"""Replicas: copies of a stage's state on another node, kept equal to the bit.

A replica is refreshed before a step is committed, by default with the final
gradient, to which it applies the same update as its owner. Two updates of equal
state by equal gradients are one program on two devices, so they have the same
bits. The other way is to send it the updated state.
"""

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any

import jax
import numpy as np

from bamboo_jax import base
from bamboo_jax.runtime import node as node_lib
from bamboo_jax.runtime.stage import spec as spec_lib
from bamboo_jax.runtime.wire import links as links_lib

PyTree = Any


@dataclasses.dataclass(frozen=True)
class ReplicaOptions:
  """How replicas are held and kept up to date.

  Attributes:
    refresh: What a replica gets before a step is committed: the final
      "gradient", to which it applies the same update as its owner, or the
      updated "state", which costs more bytes and no update.
    slots: Where its optimizer slots lie between steps: on the "device", or in
      "host" memory.
  """

  refresh: str = "gradient"
  slots: str = "device"

  def __post_init__(self) -> None:
    for name, allowed in (
        ("refresh", ("gradient", "state")),
        ("slots", ("device", "host")),
    ):
      value = getattr(self, name)
      if value not in allowed:
        what = f"value of redundancy.{name}"
        raise ValueError(base.suggest(value, allowed, what=what))


def send_to_shadows(
    nodes: Mapping[int, node_lib.Node],
    links: links_lib.Links,
    values: Mapping[tuple[int, int], PyTree],
    *,
    owners: tuple[int, ...],
    shadows: Mapping[int, int],
    like: Sequence[PyTree],
) -> dict[tuple[int, int], PyTree]:
  """Sends something of each stage to the node that shadows it.

  Args:
    nodes: Local nodes by number.
    links: All links of this process.
    values: What to send, by stage and owner, of local owners.
    owners: The node of each stage of a pipeline.
    shadows: For stages with a replica, the node that holds it.
    like: Shapes of what is sent, one entry per stage.

  Returns:
    What local shadows have received, by stage and node.
  """
  received = {}
  for stage, shadow in sorted(shadows.items()):
    owner = owners[stage]
    if owner not in nodes and shadow not in nodes:
      continue
    name = ("refresh", stage)
    link = links.get(name, owner, shadow, like=like[stage])
    if owner in nodes:
      link.send(values[stage, owner])
    if shadow in nodes:
      received[stage, shadow] = link.receive()
  return received


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
    nodes: Mapping[int, node_lib.Node], *, stage: int, source: int, to: int
) -> int:
  """Copies the state of a stage between nodes; returns the bytes moved."""
  state = move_slots(nodes[source], stage, memory_kind="device")
  node = nodes[to]
  node.state[stage] = jax.device_put(state, node.device, may_alias=False)
  return sum(a.nbytes for a in jax.tree.leaves(state))


def check_replicas(
    nodes: Mapping[int, node_lib.Node],
    *,
    owners: tuple[int, ...],
    shadows: Mapping[int, int],
    step: int,
) -> None:
  """Raises `base.ReplicaMismatchError` unless replicas equal their owners.

  Compares bits, and blocks until it has them.
  """
  for stage, shadow in sorted(shadows.items()):
    name = find_difference(
        spec_lib.split_layers(nodes[owners[stage]].state[stage]),
        spec_lib.split_layers(nodes[shadow].state[stage]),
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
  """Returns the first layer of `want` that has other bits in `got`, or None."""
  for name, layer in want.items():
    pairs = zip(jax.tree.leaves(layer), jax.tree.leaves(got[name]), strict=True)
    if not all(_same_bits(a, b) for a, b in pairs):
      return name
  return None


def _same_bits(a: jax.Array, b: jax.Array) -> bool:
  return np.asarray(a).tobytes() == np.asarray(b).tobytes()
