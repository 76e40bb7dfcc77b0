"""A worker's work on transfers between processes, outside of a step.

Nodes connect in advance to the nodes that they will need after a death, and
after a loss end the transfers between live nodes.
"""

from collections.abc import Iterable
from typing import Protocol

from bamboo_jax.base import json as json_lib
from bamboo_jax.cluster import client as client_lib
from bamboo_jax.runtime import engine as engine_lib
from bamboo_jax.runtime import executor as executor_lib
from bamboo_jax.runtime.phases import compile_ahead
from bamboo_jax.runtime.wire import transport as transport_lib
from bamboo_jax.schedule import channel as channel_lib
from bamboo_jax.train import background_compiler

_NOT_READY = -1


class Transfers(Protocol):
  """Interface to the transfers between processes, outside of a step."""

  def attach(
      self,
      engine: engine_lib.Engine,
      compiler: background_compiler.BackgroundCompiler,
  ) -> None:
    """Sets the users of transfers; called once, first."""
    return

  def settle(self) -> None:
    """Completes, after a new view, all transfers begun between live nodes."""
    return

  def ready(self, version: int) -> int:
    """Returns the layout's `version` if ready to preconnect; else -1."""
    del version
    return _NOT_READY

  def connect(self) -> None:
    """Connects to the nodes needed in new roles; all members call it."""
    return

  def preconnect(self, said: Iterable[int], version: int) -> None:
    """Connects to the nodes needed after a death, if all members are ready.

    `said` has the values of `ready` of all members.
    """
    return


class NoTransfers(Transfers):
  """The transfers of a single member, which stay in its process."""


class PeerTransfers:
  """The transfers of a process of a cluster.

  Args:
    client: Connection to the agent.
    transport: Connections to other workers.
    collectives: Those of the executor; None without.
    preconnects: Whether to connect in advance.
  """

  def __init__(
      self,
      client: client_lib.Client,
      transport: transport_lib.Transport,
      collectives: executor_lib.Collectives | None,
      *,
      preconnects: bool,
  ) -> None:
    self._client = client
    self._transport = transport
    self._collectives = collectives
    self._preconnects = preconnects
    self._connected = (0, _NOT_READY)

  def attach(
      self,
      engine: engine_lib.Engine,
      compiler: background_compiler.BackgroundCompiler,
  ) -> None:
    """See `Transfers`."""
    self._engine = engine
    self._compiler = compiler

  def settle(self) -> None:
    """See `Transfers`; raises `base.ViewChangedError` after another loss."""
    begun = {
        node: json_lib.from_plain(channel_lib.Begun, b)
        for node, b in self._client.collect("begun").items()
    }
    addresses = {node: b.address for node, b in begun.items()}
    self._transport.set_addresses(addresses)
    if self._collectives is not None:
      self._collectives.settle(begun, view=self._client.adopted.number)

  def ready(self, version: int) -> int:
    """See `Transfers`; ready once all programs are compiled."""
    is_ready = self._preconnects and self._compiler.is_idle
    return version if is_ready else _NOT_READY

  def connect(self) -> None:
    """See `Transfers`; raises as a transfer does if a node is lost."""
    if self._preconnects:
      self._connect()

  def preconnect(self, said: Iterable[int], version: int) -> None:
    """See `Transfers`; all nodes call it at once, between two steps.

    Raises as a transfer does if a node is lost.
    """
    facts = (self._client.adopted.number, version)
    if set(said) == {version} and self._connected != facts:
      self._connect()
      self._connected = facts

  def _connect(self) -> None:
    self._transport.connect(compile_ahead.find_partners(self._engine))
