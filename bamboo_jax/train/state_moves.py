"""State that moves between workers, and becomes valid everywhere at once."""

from collections.abc import Iterable, Mapping

import jax

from bamboo_jax.cluster import blobs as blobs_lib
from bamboo_jax.cluster import client as client_lib
from bamboo_jax.runtime import engine as engine_lib
from bamboo_jax.runtime.stage import spec as spec_lib
from bamboo_jax.schedule import failover
from bamboo_jax.train import state_blobs


class StateMoves:
  """Offers state of the local node to others, and fetches theirs.

  Args:
    engine: Has the local node.
    client: Says who is gone while this node waits.
    host: Where to listen, and how others reach this node.
    secret: Shared by all processes of the cluster.

  Attributes:
    address: Where others fetch state from this node.
    addresses: The same of all nodes, by number.
    fetched_for: Version of the roles that need what has been fetched.
  """

  def __init__(
      self,
      engine: engine_lib.Engine,
      client: client_lib.Client,
      *,
      host: str,
      secret: bytes,
  ) -> None:
    self._engine = engine
    self._client = client
    self._secret = secret
    self._blobs = blobs_lib.BlobServer(host, secret=secret)
    self._fetched: dict[int, spec_lib.StageState] = {}
    self.address = self._blobs.address
    self.addresses: Mapping[int, tuple[str, int]] = {}
    self.fetched_for = -1

  def prefetch(self, copies: Iterable[failover.Copy], *, version: int) -> None:
    """Fetches what the roles of `version` need here; changes nothing yet.

    Raises:
      ViewChangedError, OSError: Somebody is gone.
    """
    copies = list(copies)
    for copy in copies:
      self.offer(f"{version}", copy.source, copy.stage)
    self._fetched, self.fetched_for = {}, version
    for copy in copies:
      if copy.destination == self._client.number:
        self._engine.load_programs(copy.destination, copy.stage)
        state = self.fetch(f"{version}", copy.source, copy.stage)
        self._fetched[copy.stage] = state

  def keep(
      self, states: Mapping[int, spec_lib.StageState], *, version: int
  ) -> None:
    """Keeps state that `version` needs here, and that comes from elsewhere."""
    for stage in states:
      self._engine.load_programs(self._client.number, stage)
    self._fetched, self.fetched_for = dict(states), version

  def install(self) -> None:
    """Makes what was fetched valid: all others have theirs too."""
    for stage, state in self._fetched.items():
      self.put(stage, state)
    self._fetched = {}
    self._blobs.clear()

  def put(self, stage: int, state: spec_lib.StageState) -> None:
    """Gives the local node the state of a stage."""
    self._engine.load_programs(self._client.number, stage)
    node = self._engine.nodes[self._client.number]
    node.state[stage] = jax.device_put(state, node.device, may_alias=False)

  def offer(self, name: str, node: int, stage: int) -> None:
    """Lets others fetch the state of a stage from `node`, if it is local."""
    if node in self._engine.nodes:
      state = self._engine.nodes[node].state[stage]
      self._blobs.offer(f"{name}/{stage}", state_blobs.to_bytes(state))

  def fetch(self, name: str, node: int, stage: int) -> spec_lib.StageState:
    """Returns the state that `node` offers; waits for it.

    Raises:
      ViewChangedError, OSError: Somebody is gone.
    """

    def check() -> None:
      if self._client.is_interrupted:
        raise client_lib.ViewChangedError(f"while fetching stage {stage}")

    blob = blobs_lib.fetch(
        self.addresses[node],
        f"{name}/{stage}",
        secret=self._secret,
        check=check,
    )
    like = self._engine.specs[stage].state
    return state_blobs.from_bytes(blob, like)
