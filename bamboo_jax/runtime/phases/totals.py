"""What is read from the sums of the gradients over all shares."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from bamboo_jax.runtime import node as node_lib
from bamboo_jax.runtime.stage import spec as spec_lib

PyTree = Any
# By stage; the same on each local device that owns the stage.
Totals = Mapping[int, Mapping[jax.Device, spec_lib.Accumulator]]
Nodes = Mapping[int, node_lib.Node]
Owners = Sequence[Sequence[int]]  # For each pipeline, the node of each stage.


def stage_norms(
    totals: Totals, nodes: Nodes, owners: Owners
) -> dict[int, np.ndarray]:
  """Returns the squared norm of the gradient of each layer, by local stage."""
  norms = {}
  for stage in sorted(totals):
    node = _local_owner(nodes, owners, stage)
    norms[stage] = node.programs[stage].norms(totals[stage][node.device])
  return {s: np.asarray(n, np.float64) for s, n in norms.items()}


def grads(
    totals: Totals, nodes: Nodes, row: Sequence[int]
) -> dict[str, PyTree]:
  """Returns the gradients of each layer that a local node of `row` owns."""
  found = {}
  for stage, number in enumerate(row):
    if number in nodes:
      found |= totals[stage][nodes[number].device].grads
  return found


def loss(totals: Totals, nodes: Nodes, owners: Owners) -> np.ndarray:
  """Returns the sum of the losses and their weight; blocks."""
  stage = len(owners[0]) - 1
  device = _local_owner(nodes, owners, stage).device
  return np.asarray(totals[stage][device].loss, np.float64)


def owned(
    totals: Totals, nodes: Nodes, owners: Owners
) -> dict[tuple[int, int], spec_lib.Accumulator]:
  """Returns the sums by stage and local node that owns it and has it.

  A node that became the owner after the sum has what `refresh` sent it.
  """
  return {
      (stage, number): totals[stage][nodes[number].device]
      for row in owners
      for stage, number in enumerate(row)
      if number in nodes and nodes[number].device in totals[stage]
  }


def _local_owner(nodes: Nodes, owners: Owners, stage: int) -> node_lib.Node:
  return next(nodes[row[stage]] for row in owners if row[stage] in nodes)
