"""From the final gradients to the next state, of owners and of replicas.

Replicas are refreshed before a step is committed, everything is updated after.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from bamboo_jax.runtime import node as node_lib
from bamboo_jax.runtime.phases import replicas as replicas_lib
from bamboo_jax.runtime.stage import spec as spec_lib
from bamboo_jax.runtime.wire import links as links_lib

PyTree = Any
Nodes = Mapping[int, node_lib.Node]
Totals = Mapping[tuple[int, int], spec_lib.Accumulator]  # By stage and node.
Roles = Sequence[tuple[tuple[int, ...], Mapping[int, int]]]


class Update:
  """The phases `refresh` and `apply` of one step after the other.

  Attributes:
    proposes: Whether the state after a step is computed before its commit.
  """

  def __init__(
      self,
      specs: Sequence[spec_lib.StageSpec],
      *,
      links: links_lib.Links,
      options: replicas_lib.ReplicaOptions,
  ) -> None:
    self.proposes = options.refresh == "state"
    self._specs = specs
    self._links = links
    self._options = options
    self._received: dict[tuple[int, int], spec_lib.Accumulator] = {}
    self._proposed: dict[tuple[int, int], spec_lib.StageState] = {}

  @property
  def refreshed(self) -> list[PyTree]:
    """Shapes of what a replica is sent, by stage."""
    if self.proposes:
      return [spec.state for spec in self._specs]
    return [spec.accumulator for spec in self._specs]

  def begin_step(self, num_microbatches: int) -> None:
    """Forgets the step before; the next one sums so many microbatches."""
    self._num_microbatches = num_microbatches
    self._received.clear()
    self._proposed.clear()

  def forget(self, number: int) -> list[PyTree]:
    """Drops, and returns, what a node has of the update: it has died."""
    return [
        held.pop(key)
        for held in (self._received, self._proposed)
        for key in list(held)
        if key[1] == number
    ]

  def refresh(
      self, nodes: Nodes, roles: Roles, totals: Totals, *, scale: float
  ) -> int:
    """Brings replicas up to date, for the commit; returns the bytes sent.

    Args:
      nodes: Local nodes by number.
      roles: For each pipeline, owners and shadows.
      totals: Final gradients, of local owners.
      scale: What gradients are multiplied by in the update.
    """
    self._received, self._proposed = {}, {}
    values = totals
    if self.proposes and any(shadows for _, shadows in roles):
      for (stage, number), total in totals.items():
        node = nodes[number]
        state = node.state[stage]
        self._proposed[stage, number] = node.programs[stage].propose(
            state.params, state.slots, total, *self._scalars(node, scale)
        )
      values = self._proposed
    received = {}
    for owners, shadows in roles:
      received |= replicas_lib.send_to_shadows(
          nodes,
          self._links,
          values,
          owners=owners,
          shadows=shadows,
          like=self.refreshed,
      )
    if self.proposes:
      self._proposed |= received
    else:
      self._received = received
    return sum(a.nbytes for a in jax.tree.leaves(list(received.values())))

  def wait(self) -> None:
    """Blocks until what `refresh` started has finished."""
    jax.block_until_ready(list(self._received.values()))
    jax.block_until_ready(list(self._proposed.values()))

  def apply(
      self,
      nodes: Nodes,
      shadows: Sequence[Mapping[int, int]],
      totals: Totals,
      *,
      scale: float,
  ) -> None:
    """Updates all stages and replicas of local nodes.

    Args:
      nodes: Local nodes by number.
      shadows: For each pipeline, the node that holds a replica of a stage.
      totals: Final gradients, of local owners.
      scale: As for `refresh`.
    """
    totals = {**totals, **self._received}
    for number, node in nodes.items():
      for stage in list(node.state):
        total = totals.get((stage, number))
        node.state[stage] = self._updated(node, stage, total, scale)
        is_replica = any(s.get(stage) == number for s in shadows)
        if is_replica and self._options.slots == "host":
          node.state[stage] = replicas_lib.move_slots(
              node, stage, memory_kind="pinned_host"
          )

  def _updated(
      self,
      node: node_lib.Node,
      stage: int,
      total: spec_lib.Accumulator | None,
      scale: float,
  ) -> spec_lib.StageState:
    proposed = self._proposed.pop((stage, node.node), None)
    if proposed is not None:
      return proposed
    assert total is not None, (stage, node.node)
    state = replicas_lib.move_slots(node, stage, memory_kind="device")
    del node.state[stage]  # It is donated.
    return node.programs[stage].update(
        state.params, state.slots, total, *self._scalars(node, scale)
    )

  def _scalars(
      self, node: node_lib.Node, scale: float
  ) -> tuple[jax.Array, jax.Array]:
    values = (np.float32(scale), np.float32(self._num_microbatches))
    return jax.device_put(values, node.device)
