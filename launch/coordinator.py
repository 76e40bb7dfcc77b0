"""The coordination service of JAX in a process of its own.

python -m launch.coordinator --port=8476 --etcd=127.0.0.1:2379

It runs beside etcd, on the machine that must be up anyway; see
`bamboo_jax.runtime.wire.coordination`. With --etcd it starts another service
when a node comes for which the last one has no slot, on the next port, and ends
those that nobody uses any more (`bamboo_jax.cluster.sessions.eras`); if it has
died, starting it again is enough. Without, there is one service. Prints a line
for each.
"""

from collections.abc import Sequence
import os
import signal
import sys
import time
from typing import Any

from absl import flags
from absl import logging

from bamboo_jax.base import ports as ports_lib
from bamboo_jax.cluster import auth
from bamboo_jax.cluster.sessions import eras
from bamboo_jax.cluster.store import etcd as etcd_lib
from bamboo_jax.cluster.store import registry as registry_lib
from launch import cli

_PORT = flags.DEFINE_integer(
    "port", None, "Where to listen; 0 for any port.", required=True
)
_HOST = flags.DEFINE_string(
    "host", "127.0.0.1", "Where to listen, and how workers reach it."
)
_SECRET = flags.DEFINE_string(
    "secret", None, "File of the secret of all agents; needed beyond loopback."
)
_SLOTS = flags.DEFINE_integer(
    "slots", 64, "Slots of a service: one more than nodes that it can take."
)
_ETCD = flags.DEFINE_string("etcd", None, "Host and port, to serve eras.")
_RUN = flags.DEFINE_string("run", "run", "Name of the run in etcd.")

_POLL_SECS = 0.1


def main(argv: Sequence[str]) -> None:
  """Serves until it is ended."""
  cli.check_no_arguments(argv)
  secret = auth.read_secret(_SECRET.value)
  auth.check_host(_HOST.value, secret=secret)
  if _SLOTS.value < 2:
    raise ValueError(f"--slots must be at least 2, got {_SLOTS.value}.")
  # A service that ends says goodbye, which workers do not survive; one whose
  # process is killed does not.
  signal.signal(signal.SIGTERM, signal.SIG_DFL)
  services = _Services(_HOST.value, _PORT.value)
  if _ETCD.value is None:
    address = services.find_address()
    services.start(eras.Era(0, address, _SLOTS.value))
    signal.pause()
  host, port = etcd_lib.parse_endpoint(_ETCD.value)
  _Coordinator(etcd_lib.Etcd(host, port), _RUN.value, services).serve()


class _Services:
  """The services of this process, by era."""

  def __init__(self, host: str, port: int) -> None:
    self._host = host
    self._port = port
    self._running: dict[int, Any] = {}

  @property
  def running(self) -> list[int]:
    """Their eras."""
    return list(self._running)

  def find_address(self) -> str:
    """Returns where the next service will be."""
    port = self._port or ports_lib.free_port()
    self._port += self._port > 0
    return f"{self._host}:{port}"

  def start(self, era: eras.Era) -> None:
    """Starts the service of an era."""
    from bamboo_jax.runtime.wire import coordination

    host, port = etcd_lib.parse_endpoint(era.address)
    ports_lib.check_port(host, port)
    self._running[era.number] = coordination.Service(
        port, numbers=era.numbers, host=host
    )
    print(
        f"coordination service ready on {era.address}, era {era.number}",
        flush=True,
    )

  def end(self, number: int) -> None:
    """Ends the service of an era."""
    del self._running[number]


class _Coordinator:
  """Serves eras as they are asked for."""

  def __init__(
      self, etcd: etcd_lib.Etcd, run: str, services: _Services
  ) -> None:
    self._registry = registry_lib.Registry(etcd, run)
    self._services = services

  def serve(self) -> None:
    """Serves for ever; what the store does not answer is asked again.

    Ends the process if another coordinator has taken over.
    """
    while True:
      try:
        self._look()
      except OSError as error:
        logging.warning("%s", error)
      except ValueError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        os._exit(2)  # Without a goodbye.
      time.sleep(_POLL_SECS)

  def _look(self) -> None:
    running, begun = self._services.running, self._registry.eras()
    number = begun[-1].number if begun else -1
    if not running or self._registry.wanted_era() > number == running[-1]:
      self._begin(number + 1)
    elif number != running[-1]:
      raise ValueError(
          f"Era {number} of run {_RUN.value!r} is that of another coordinator; "
          "there must be only one."
      )
    names = [member.name for member in self._registry.members()]
    used = self._registry.used_eras(names)
    for era in eras.find_unused(self._services.running, used):
      self._services.end(era)

  def _begin(self, number: int) -> None:
    view = self._registry.read_view()
    nodes = {member.number for member in self._registry.members()}
    era = eras.begin_era(
        number,
        self._services.find_address(),
        num_slots=_SLOTS.value,
        nodes=nodes | (view.numbers if view else set()),
    )
    self._services.start(era)
    self._registry.publish_era(era)


if __name__ == "__main__":
  cli.run(main)
