"""Replicas: copies of a stage's state on another node, kept equal to the bit.

A replica is refreshed before a step is committed: it gets the final gradient
and applies the same update as its owner. Two updates of equal state by equal
gradients are one program on two devices, so they have the same bits.
"""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from bamboo_jax import base
from bamboo_jax.runtime import links as links_lib
from bamboo_jax.runtime import node as node_lib
from bamboo_jax.runtime import spec as spec_lib

PyTree = Any


def send_totals(
    nodes: Mapping[int, node_lib.Node],
    links: links_lib.Links,
    totals: Mapping[tuple[int, int], spec_lib.Accumulator],
    *,
    owners: tuple[int, ...],
    shadows: Mapping[int, int],
    specs: tuple[spec_lib.StageSpec, ...],
) -> dict[tuple[int, int], spec_lib.Accumulator]:
  """Sends the final gradient of each stage to the node that shadows it.

  Args:
    nodes: Local nodes by number.
    links: All links of this process.
    totals: Final gradient by stage and owner, of local owners.
    owners: The node of each stage of a pipeline.
    shadows: For stages with a replica, the node that holds it.
    specs: One entry per stage.

  Returns:
    What local shadows have received, by stage and node.
  """
  received = {}
  for stage, shadow in sorted(shadows.items()):
    owner = owners[stage]
    if owner not in nodes and shadow not in nodes:
      continue
    like = specs[stage].accumulator
    link = links.get(("total", stage), owner, shadow, like=like)
    if owner in nodes:
      link.send(totals[stage, owner])
    if shadow in nodes:
      received[stage, shadow] = link.receive()
  return received


def copy_state(
    nodes: Mapping[int, node_lib.Node], *, stage: int, source: int, to: int
) -> int:
  """Copies the state of a stage between nodes; returns the bytes moved."""
  state = nodes[source].state[stage]
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
    want = spec_lib.split_layers(nodes[owners[stage]].state[stage])
    got = spec_lib.split_layers(nodes[shadow].state[stage])
    for name, layer in want.items():
      pairs = zip(
          jax.tree.leaves(layer), jax.tree.leaves(got[name]), strict=True
      )
      if not all(_same_bits(a, b) for a, b in pairs):
        raise base.ReplicaMismatchError(
            f"After step {step} the replica of layer {name!r} (stage {stage}) "
            f"on node {shadow} differs from its owner, node {owners[stage]}."
        )


def _same_bits(a: jax.Array, b: jax.Array) -> bool:
  return np.asarray(a).tobytes() == np.asarray(b).tobytes()
