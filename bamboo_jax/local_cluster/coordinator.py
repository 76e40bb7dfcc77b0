"""Starts and ends coordination services, one per era.

It runs beside etcd, on the machine that must be up anyway, and starts another
service, on the next port, when a node has no slot in the last, or has lost it;
it ends those that nobody uses any more (`cluster.eras`). It can be started
again.
"""

import os
import socket
import sys
import time
from typing import Any

from absl import logging

from bamboo_jax.base import ports as ports_lib
from bamboo_jax.cluster import eras as eras_lib
from bamboo_jax.cluster import identity as identity_lib
from bamboo_jax.cluster import proxy as proxy_lib
from bamboo_jax.cluster import views
from bamboo_jax.cluster.store import etcd as etcd_lib
from bamboo_jax.cluster.store import registry as registry_lib
from bamboo_jax.runtime.wire import coordination

_POLL_SECS = 0.1
_ANSWER_SECS = 1.0
_LOOK_SECS = 2.0  # Between two looks at a store in which nothing changes.


class Services:
  """The services of this process, by era."""

  def __init__(
      self, host: str, port: int, identity: identity_lib.Identity
  ) -> None:
    self._identity = identity
    self._host = host
    self._port = port
    self._running: dict[int, Any] = {}

  @property
  def running(self) -> list[int]:
    """Their eras."""
    return list(self._running)

  def find_address(self, number: int) -> str:
    """Returns the address of the service of an era.

    No other era has had it: who does not know yet that this one has died must
    not take the next service for it.
    """
    port = self._port + number if self._port else ports_lib.free_port()
    return f"{self._host}:{port}"

  def answers(self, era: eras_lib.Era) -> bool:
    """Returns whether the service of an era lives, in another process."""
    address = etcd_lib.parse_endpoint(era.address)
    try:
      socket.create_connection(address, timeout=_ANSWER_SECS).close()
    except OSError:
      return False
    return True

  def start(self, era: eras_lib.Era) -> None:
    """Starts the service of an era."""
    host, port = etcd_lib.parse_endpoint(era.address)
    ports_lib.check_port(host, port)
    inner = ports_lib.free_port()
    service = coordination.Service(inner, numbers=era.numbers)
    gate = proxy_lib.Gate(host, port, inner_port=inner, identity=self._identity)
    self._running[era.number] = (service, gate)
    print(
        f"coordination service ready on {era.address}, era {era.number}",
        flush=True,
    )

  def end(self, number: int) -> None:
    """Ends the service of an era."""
    self._running.pop(number)[1].close()


class Coordinator:
  """Serves the eras that are asked for."""

  def __init__(
      self,
      etcd: etcd_lib.Etcd,
      services: Services,
      *,
      run: str,
      num_slots: int,
  ) -> None:
    self._run = run
    self._num_slots = num_slots
    self._etcd = etcd
    self._registry = registry_lib.Registry(etcd, run)
    self._services = services
    self._newest: eras_lib.Era | None = None

  def serve(self) -> None:
    """Serves for ever; ends the process if another coordinator takes over."""
    try:
      if fault := etcd_lib.find_fault(self._etcd.version()):
        logging.warning("%s", fault)
    except OSError as error:
      logging.warning("%s", error)
    while True:
      after = self._etcd.revision
      try:
        self.look()
        self._registry.wait(after, _LOOK_SECS)
      except OSError as error:
        logging.warning("%s", error)
      except ValueError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        os._exit(2)  # Without a goodbye.
      time.sleep(_POLL_SECS)

  def look(self) -> None:
    """Begins and ends services as the store says; raises as `serve` takes it.

    Raises:
      OSError: The store cannot be reached, or is not to be trusted.
      ValueError: Another coordinator has taken over.
    """
    try:
      running, begun = self._services.running, self._registry.eras()
    except etcd_lib.LostStoreError:
      self._etcd.forget()  # Members give it back what they know.
      raise
    if not self._registry.stamp():
      return  # Nobody has come yet, or members give back what they know.
    number = begun[-1].number if begun else -1
    if running and number < running[-1]:  # The store has lost it, or never had.
      self._registry.publish_era(self._newest)
    elif running and begun[-1] != self._newest:
      is_ours = begun[-1].address == self._newest.address
      if not is_ours and self._services.answers(begun[-1]):
        raise ValueError(
            f"Era {number} of run {self._run!r} is that of another coordinator;"
            " there must be only one."
        )
      self._begin(number + 1)  # Members gave it back to a store that was old.
    elif not running or self._registry.wanted_era() > number:
      self._begin(number + 1)
    view = self._registry.read_view() or views.EMPTY  # Leases may have lapsed.
    nodes = [*view.members, *self._registry.members()]
    used = self._registry.used_eras({member.name for member in nodes})
    for era in eras_lib.find_unused(self._services.running, used):
      self._services.end(era)

  def _begin(self, number: int) -> None:
    view = self._registry.read_view()
    nodes = eras_lib.find_nodes(
        members=None if view is None else view.numbers,
        registered=[member.number for member in self._registry.members()],
        tickets=self._registry.zones(),
        num_slots=self._num_slots,
    )
    era = eras_lib.begin_era(
        number,
        self._services.find_address(number),
        num_slots=self._num_slots,
        nodes=nodes,
    )
    self._services.start(era)
    self._newest = era
    if not self._registry.publish_era(era):  # Nobody has connected to it.
      self._services.end(number)
