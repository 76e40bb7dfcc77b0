"""Moves state between nodes in two phases: fetch, then install.

Between nodes of this process state is copied; between processes each array is a
message of the transport: a stage may be larger than what may be in flight.
"""

from collections.abc import Iterable, Mapping

import jax

from bamboo_jax import base
from bamboo_jax.runtime import engine as engine_lib
from bamboo_jax.runtime.stage import spec as spec_lib
from bamboo_jax.runtime.wire import transport as transport_lib
from bamboo_jax.schedule import failover
from bamboo_jax.training import cohort as cohort_lib

NodeStage = tuple[base.NodeId, base.StageId]
Layers = Mapping[str, spec_lib.LayerState]  # By name.


class StateTransfer:
  """Sends state of the local nodes to others, and receives theirs.

  Attributes:
    fetched_for: Version of the layout for which state was last fetched.
  """

  def __init__(self, engine: engine_lib.Engine, cohort: cohort_lib.Cohort) -> None:
    self._engine = engine
    self._cohort = cohort
    self._fetched: dict[NodeStage, Layers] = {}
    self.fetched_for = -1

  @property
  def _exchange(self) -> transport_lib.Transport:
    assert self._engine.exchange is not None, "All nodes are in this process."
    return self._engine.exchange

  def prefetch(self, copies: Iterable[failover.StageCopy], *, version: int) -> None:
    """Sends and fetches the state for layout `version`; installs nothing yet.

    Blocks until the state has arrived.

    Raises:
      base.AttemptOverError, base.PeerRemovedError: A member was lost.
    """
    copies, engine = list(copies), self._engine
    mine = [c for c in copies if c.destination in self._cohort.hosted]
    for copy in copies:
      if copy not in mine and copy.source in engine.nodes:
        name = _name(copy, version)
        for leaf in jax.tree.leaves(engine.nodes[copy.source].layers_of(copy.stage)):
          self._exchange.send(copy.destination, name, [leaf])
    self._fetched, self.fetched_for = {}, version
    for copy in mine:
      self._engine.load_programs(copy.destination, copy.stage)
      self._fetched[copy.destination, copy.stage] = self._fetch(copy, version)

  def keep(self, states: Mapping[NodeStage, Layers], *, version: int) -> None:
    """Keeps state, by node and stage, to install for layout `version`."""
    for node, stage in states:
      self._engine.load_programs(node, stage)
    self._fetched, self.fetched_for = dict(states), version

  def install(self) -> None:
    """Installs the fetched state; all members must have fetched theirs."""
    for (node, stage), state in self._fetched.items():
      self.put(node, stage, state)
    self._fetched = {}

  def forget(self) -> None:
    """Drops fetched state, for a change of the layout that was discarded."""
    self._fetched, self.fetched_for = {}, -1

  def put(self, node: base.NodeId, stage: base.StageId, state: Layers) -> None:
    """Sets the state of a stage on a local node."""
    self._engine.load_programs(node, stage)
    self._engine.nodes[node].put_state(state)

  def _fetch(self, copy: failover.StageCopy, version: int) -> Layers:
    """Returns the state to copy; blocks until it has arrived."""
    if copy.source in self._engine.nodes:
      return self._engine.nodes[copy.source].layers_of(copy.stage)
    name, shapes = _name(copy, version), self._engine.specs[copy.stage].state
    state: Layers = jax.tree.map(lambda _: self._exchange.receive(copy.source, name)[0], shapes)
    return state


def _name(copy: failover.StageCopy, version: int) -> str:
  return f"state {version} {copy.stage}"
