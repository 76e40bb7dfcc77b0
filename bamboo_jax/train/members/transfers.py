"""A worker's duties for transfers between processes, beside the step itself.

Nodes connect ahead of time with those that they will need after a death, and
after a loss end what live nodes have begun.
"""

from collections.abc import Iterable
import time
from typing import Protocol

from absl import logging

from bamboo_jax.base import json as json_lib
from bamboo_jax.cluster import client as client_lib
from bamboo_jax.runtime import engine as engine_lib
from bamboo_jax.runtime.phases import compile_ahead
from bamboo_jax.runtime.spmd.processes import settle
from bamboo_jax.runtime.spmd.processes import transfer_log
from bamboo_jax.runtime.wire import transport as transport_lib
from bamboo_jax.schedule import channel as channel_lib
from bamboo_jax.train import background_compiler

_NOT_READY = -1


class Transfers(Protocol):
  """What a worker does for transfers that leave its process; here, none do."""

  def attach(
      self,
      engine: engine_lib.Engine,
      compiler: background_compiler.BackgroundCompiler,
  ) -> None:
    """Takes the users of transfers; called once, first."""

  def settle(self) -> None:
    """Ends, after a new view, all transfers that live nodes have begun."""

  def ready(self, version: int) -> int:
    """Returns for the vote what `preconnect` compares in a layout."""
    del version
    return _NOT_READY

  def connect(self) -> None:
    """Connects nodes that need each other in new roles, all at once."""

  def preconnect(self, said: Iterable[int], version: int) -> None:
    """Connects nodes that will need each other, if all are ready."""


class NoTransfers(Transfers):
  """The transfers of a lone member: none leave its process."""


class PeerTransfers:
  """The transfers of a process of a cluster.

  Args:
    log: Collective transfers with other processes pass it; None without.
    preconnects: Whether to connect ahead of time.
  """

  def __init__(
      self,
      client: client_lib.Client,
      transport: transport_lib.Transport,
      log: transfer_log.TransferLog | None,
      *,
      preconnects: bool,
  ) -> None:
    self._client = client
    self._transport = transport
    self._log = log
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
    if self._log is None:
      return
    self._log.answer_for(self._client.adopted.number)
    for channel in settle.find_unanswered(begun)[self._client.number]:
      _answer(self._engine, channel)

  def ready(self, version: int) -> int:
    """Returns the version once all for it is compiled."""
    is_ready = self._preconnects and self._compiler.is_idle and self._log
    return version if is_ready else _NOT_READY

  def connect(self) -> None:
    """See `Transfers`; raises as a transfer does if somebody is gone.

    In the step they would meet one after the other, and wait for each other.
    """
    if self._log is None:
      self._connect_peers()
    elif self._preconnects:
      self._connect(ahead=False)

  def preconnect(self, said: Iterable[int], version: int) -> None:
    """See `Transfers`; all nodes call it at once, between two steps.

    Raises as a transfer does if somebody is gone.
    """
    facts = (self._client.adopted.number, version)
    if self._log is None:
      if self._preconnects and self._connected != facts:
        self._connect_peers()
        self._connected = facts
      return
    if set(said) == {version} and self._connected != facts:
      self._connect(ahead=True)
      self._connected = facts

  def _connect_peers(self) -> None:
    self._transport.connect(compile_ahead.find_partners(self._engine))

  def _connect(self, *, ahead: bool) -> None:
    begin_secs = time.perf_counter()
    count = compile_ahead.preconnect(self._engine, ahead=ahead)
    secs, when = time.perf_counter() - begin_secs, "ahead" if ahead else "now"
    logging.info("Connected %d groups %s in %.3f s.", count, when, secs)


def _answer(engine: engine_lib.Engine, channel: channel_lib.Channel) -> None:
  """Ends a transfer that another process has begun; blocks."""
  match channel.kind:
    case "meet":
      engine.preconnections.answer(channel)
    case "ring":
      engine.rings.answer(channel)
    case _:
      raise AssertionError(channel)
