"""Moves state between nodes, and makes it valid everywhere at once.

Within this process it is copied; from others it is fetched as bytes: all arrays
of a stage one after the other, in the order of JAX.
"""

from collections.abc import Iterable, Mapping
import time

import jax
import numpy as np

from bamboo_jax.cluster import blobs as blobs_lib
from bamboo_jax.runtime import engine as engine_lib
from bamboo_jax.runtime.stage import spec as spec_lib
from bamboo_jax.schedule import failover
from bamboo_jax.train.members import cohort as cohort_lib

_PREFIX = "state/"
_AGAIN_SECS = 0.1


class StateTransfer:
  """Offers state of the local nodes to others, and fetches theirs.

  Without others `peers` is None.

  Attributes:
    fetched_for: Version of the layout that needs what has been fetched.
  """

  def __init__(
      self,
      engine: engine_lib.Engine,
      cohort: cohort_lib.Cohort,
      peers: blobs_lib.Peers | None,
  ) -> None:
    self._engine = engine
    self._cohort = cohort
    self._peers = peers
    self._fetched: dict[tuple[int, int], spec_lib.StageState] = {}
    self.fetched_for = -1

  def prefetch(self, copies: Iterable[failover.Copy], *, version: int) -> None:
    """Fetches what the layout `version` needs here; changes nothing yet.

    Raises:
      base.ViewChangedError, transfer_log.StoppedError: A member is gone.
    """
    copies, nodes = list(copies), self._engine.nodes
    mine = [c for c in copies if c.destination in self._cohort.hosted]
    if self._peers:
      self._peers.clear(_PREFIX)  # Of a change that a death has ended.
    for copy in copies:
      if copy not in mine and copy.source in nodes and self._peers:
        state = to_bytes(nodes[copy.source].state[copy.stage])
        self._peers.offer(self._name(copy, version), state)
    if self._peers and copies:  # Who is still at that, others wait for.
      self._cohort.gather(f"offered {version}", None)
    self._fetched, self.fetched_for = {}, version
    for copy in mine:
      self._engine.load_programs(copy.destination, copy.stage)
      self._fetched[copy.destination, copy.stage] = self._fetch(copy, version)

  def keep(
      self,
      states: Mapping[tuple[int, int], spec_lib.StageState],
      *,
      version: int,
  ) -> None:
    """Holds state from elsewhere that `version` needs here."""
    for node, stage in states:
      self._engine.load_programs(node, stage)
    self._fetched, self.fetched_for = dict(states), version

  def install(self) -> None:
    """Makes what was fetched valid; all others must have theirs."""
    for (node, stage), state in self._fetched.items():
      self.put(node, stage, state)
    self._fetched = {}
    if self._peers:
      self._peers.clear(_PREFIX)

  def forget(self) -> None:
    """Drops what was fetched for a change that never was."""
    self._fetched, self.fetched_for = {}, -1

  def put(self, node: int, stage: int, state: spec_lib.StageState) -> None:
    """Gives a local node the state of a stage."""
    self._engine.load_programs(node, stage)
    self._engine.nodes[node].put_state(stage, state)

  def _name(self, copy: failover.Copy, version: int) -> str:
    """Returns a name that no state of other steps has, to any member.

    After a death the same version may be tried again, some steps later: then
    the view is another, and whoever fetches may be ahead of who offers.
    """
    view = self._cohort.view.number
    return f"{_PREFIX}{view}/{version}/{copy.stage}"

  def _fetch(self, copy: failover.Copy, version: int) -> spec_lib.StageState:
    """Returns the state that a node has or offers; blocks until it does."""
    if copy.source in self._engine.nodes:
      return self._engine.nodes[copy.source].state[copy.stage]
    blob = self._fetch_bytes(copy.source, self._name(copy, version))
    return from_bytes(blob, self._engine.specs[copy.stage].state)

  def _fetch_bytes(self, node: int, name: str) -> bytes:
    """Returns a blob, once it is offered; this is no progress before."""
    check, note = self._engine.log.check, self._cohort.check
    while True:
      check()  # Raises once the node is known to be gone.
      try:
        return self._peers.fetch(node, name, check, note)
      except blobs_lib.DamagedError:
        raise
      except OSError:
        time.sleep(_AGAIN_SECS)


def to_bytes(state: spec_lib.StageState) -> bytes:
  """Returns the bytes of all arrays; blocks."""
  leaves = jax.device_get(jax.tree.leaves(state))
  return b"".join(np.ascontiguousarray(leaf).tobytes() for leaf in leaves)


def from_bytes(blob: bytes, like: spec_lib.StageState) -> spec_lib.StageState:
  """Returns the state as numpy arrays; `like` has its shapes and dtypes.

  Raises:
    ValueError: The sizes differ.
  """
  shapes, structure = jax.tree.flatten(like)
  leaves, start = [], 0
  for shape in shapes:
    size = int(np.prod(shape.shape)) * np.dtype(shape.dtype).itemsize
    part = np.frombuffer(blob[start : start + size], shape.dtype)
    leaves.append(part.reshape(shape.shape))
    start += size
  if start != len(blob):
    raise ValueError(f"The state must have {start} bytes, got {len(blob)}.")
  return structure.unflatten(leaves)
