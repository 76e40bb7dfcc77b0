"""The coordinator and its services, and the way of a worker to them.

The coordinator is the real one, in a thread that is given the baton: each
request to the store takes its time, and may fail. Services live in its process,
and die with it. A worker reaches them through its agent, as `cluster.proxy`:

  worker ------ Way: a proxy for each era ------ Service, at an address
     |              |-- closed: the agent is told ---|
     |<------ silent, and JAX goes on ------|
"""

import collections
from collections.abc import Callable
import dataclasses
import itertools
from typing import Any

from bamboo_jax.cluster import eras as eras_lib
from bamboo_jax.cluster.agent import events as events_lib
from bamboo_jax.cluster.store import etcd as etcd_lib
from bamboo_jax.local_cluster import coordinator as coordinator_lib
from tests.simulation import network as network_lib
from tests.simulation import plans
from tests.simulation import thread as thread_lib
from tests.simulation import world as world_lib

_POLL_SECS, _LOOK_SECS = 0.1, 2.0  # As in `local_cluster.coordinator`.
_STORE_SECS = (0.0005, 0.005)
_STORE_TIMEOUT_SECS = 2.0  # As in `etcd.Etcd`.
_START_SECS = 0.3  # That a service takes to begin.
_DELAY_SECS = 0.001
_REACH_SECS = 5.0  # As in `agent.Agent`.
_AGAIN_SECS = 1.0  # Until what a link has held is sent again.
_PORT = 8476


class Service:
  """The service of an era.

  Attributes:
    used: Slots that somebody has taken.
    ways: Those of workers that are connected.
  """

  def __init__(self, era: eras_lib.Era) -> None:
    self.era = era
    self.used: set[int] = set()
    self.ways: dict[Way, None] = {}  # In order.


class Services:
  """All services that there are, by address, and who begins them.

  Attributes:
    may_go_back: Whether the store may, and give numbers again.
    meeting: Ways of workers that connect with others, or may now.
    cut: Hosts that the machine of the coordinator cannot be reached from.
  """

  def __init__(
      self,
      world: world_lib.World,
      plan: plans.Plan,
      violate: Callable[[str], None],
  ) -> None:
    self.world, self.violate = world, violate
    kinds = {fault.kind for fault in plan.faults}
    self.may_go_back = not kinds.isdisjoint(("amnesia", "go_back"))
    self.num_slots, self._has_port = plan.num_slots, plan.seed % 2 == 1
    self.by_address: dict[str, Service] = {}
    self.meeting: set[Way] = set()
    self.cut: collections.Counter[str] = collections.Counter()
    self._ports = itertools.count(_PORT)
    self._coordinator: _Coordinator | None = None
    self._begin()

  def way(
      self,
      host: str,
      *,
      tell: Callable[[Any], None],
      end: Callable[[], None],
  ) -> "Way":
    """Returns that of an agent, which takes events, and of its worker."""
    return Way(self, host, tell=tell, end=end)

  def begin_fault(self, fault: plans.Fault, ways: list["Way"]) -> None:
    """Begins a fault that concerns services, see `plans.KINDS`.

    None while workers connect with each other: they wait for ever then.
    """
    clock, hosts = self.world.clock, fault.hosts
    if self.meeting:
      return
    match fault.kind:
      case "kill_coordinator":
        if self._coordinator is not None:
          self.close()
          clock.at(fault.secs, self._begin)
      case "reset_services":
        used = [s for s in self.by_address.values() if s.ways]
        if used:
          self._lose(max(used, key=lambda service: service.era.number))
      case "reset_service":
        for way in ways:
          way.lose()
      case "cut_service":
        self.cut.update(hosts)
        clock.at(fault.secs, network_lib.lift, self.cut, hosts)

  def _lose(self, service: Service) -> None:
    """Closes its connections."""
    for way in list(service.ways):
      way.lose()

  def close(self) -> None:
    """The process of the coordinator ends."""
    if self._coordinator is not None:
      self._coordinator.kill()
      self._coordinator = None
    services, self.by_address = self.by_address, {}
    for service in services.values():
      self._lose(service)

  def find_address(self, number: int) -> str:
    """Returns that of the next service."""
    if self._has_port:
      return f"coordinator:{_PORT + number}"
    return f"coordinator:{next(self._ports)}"

  def unsettled(self, host: str, way: "Way", era: int) -> list[str]:
    """Returns what a member lacks in the end."""
    if self._coordinator is None:
      return []
    if way.era != era or not way.answers():
      return [f"session: {host} is in {way.era}, of view {era}, unconnected"]
    old = min(s.era.number for s in self.by_address.values())
    is_due = old < era - 1 and not self.may_go_back  # Else nobody may know.
    return [f"session: that of era {old} goes on"] if is_due else []

  def _begin(self) -> None:
    self._coordinator = _Coordinator(self)


class _Coordinator:
  """A process of `launch.coordinator`."""

  def __init__(self, services: Services) -> None:
    self._services, self._world = services, services.world
    self._running: dict[int, Service] = {}
    self._etcd = etcd_lib.Etcd("store:1", transport=self._carry)
    self._coordinator = coordinator_lib.Coordinator(
        self._etcd, self, run="run", num_slots=services.num_slots
    )
    self._turn = 0
    self._thread = thread_lib.Thread(self._serve)
    self._advance(0)

  def kill(self) -> None:
    """Its process is killed."""
    self._turn = -1
    self._thread.kill()

  # What the real one calls.

  @property
  def running(self) -> list[int]:
    """See `coordinator.Services`."""
    return list(self._running)

  def find_address(self, number: int) -> str:
    """See `coordinator.Services`."""
    return self._services.find_address(number)

  def answers(self, era: eras_lib.Era) -> bool:
    """See `coordinator.Services`."""
    return era.address in self._services.by_address

  def start(self, era: eras_lib.Era) -> None:
    """See `coordinator.Services`."""
    self._sleep(_START_SECS)
    self._world.log(f"service of {era}")
    self._running[era.number] = Service(era)
    self._services.by_address[era.address] = self._running[era.number]

  def end(self, number: int) -> None:
    """See `coordinator.Services`; says goodbye."""
    self._world.log(f"the service of era {number} ends")
    service = self._running.pop(number)
    self._services.by_address.pop(service.era.address, None)
    for way in list(service.ways):
      way.hear_goodbye(number)

  # Its thread.

  def _serve(self) -> None:
    while True:
      after = self._etcd.revision
      try:
        self._coordinator.look()
        self._wait(after)
      except OSError as error:
        self._world.log(f"coordinator: {error}")
      self._sleep(_POLL_SECS)

  def _wait(self, after: int) -> None:
    """Waits for a change in the store."""
    clock, turn = self._world.clock, self._turn
    wake = lambda: clock.at(_STORE_SECS[1], self._advance, turn)
    self._world.etcd.watch("/bamboo/run/", after, wake)
    self._sleep(_LOOK_SECS)

  def _carry(self, *request: Any) -> tuple[int, dict[str, Any]]:
    world = self._world
    self._sleep(world.random.uniform(*_STORE_SECS))
    if (away_secs := world.stalled_until - world.clock.now) > 0:
      self._sleep(min(away_secs, _STORE_TIMEOUT_SECS))
      if away_secs >= _STORE_TIMEOUT_SECS:
        raise OSError("no answer of the store.")
    answer = world.etcd.carry(*request)
    if world.loses_answers and world.random.random() < 0.5:
      self._sleep(_STORE_TIMEOUT_SECS)
      raise OSError("no answer of the store.")
    return answer

  def _sleep(self, secs: float) -> None:
    self._world.clock.at(secs, self._advance, self._turn)
    self._thread.wait(None, None)

  def _advance(self, turn: int) -> None:
    """Runs it up to its next wait, unless that is over."""
    if turn != self._turn:
      return
    self._turn += 1
    try:
      self._thread.send(None)
    except ValueError as error:  # Then the whole cluster ends.
      self._services.violate(f"coordinator: {error}")


class Way:
  """How a worker reaches services, through an agent that knows eras.

  Attributes:
    era: That the worker is in, or tries to enter; -1 before the first.
  """

  def __init__(
      self,
      services: Services,
      host: str,
      *,
      tell: Callable[[Any], None],
      end: Callable[[], None],
  ) -> None:
    self.era = -1
    self._services, self._host = services, host
    self._clock = services.world.clock
    self._tell, self._end = tell, end
    self._proxies: dict[int, str] = {}  # Addresses.
    self._lost: set[int] = set()  # The agent has been told.
    self._service: Service | None = None

  # The agent.

  def open(self, era: eras_lib.Era) -> int:
    """Begins a proxy; returns its port."""
    assert era.number not in self._proxies, "a proxy is lost"
    self._proxies[era.number] = era.address
    return 1 + era.number

  def cut(self, era: int) -> None:
    """Leaves a service; the worker is not told."""
    del self._proxies[era]

  def reach(self, address: str) -> tuple[float, bool]:
    """Returns after how long an agent knows whether a service answers."""
    if self._is_cut:
      return _REACH_SECS, False
    return 2 * _DELAY_SECS, address in self._services.by_address

  def lose(self) -> None:
    """The connection is closed by the other end, or on its way."""
    service, self._service = self._service, None
    if service is not None:
      del service.ways[self]
      self._deliver(self._note_lost, self.era)

  def hear_goodbye(self, era: int) -> None:
    """JAX ends the process of a worker that hears it."""
    self.lose()
    if era in self._proxies:
      self._deliver(self._end)

  # The worker.

  def connect(self, era: eras_lib.Era, number: int) -> bool:
    """Enters an era, in place of the one before; returns whether it could."""
    if self._service is not None:
      del self._service.ways[self]
      self._service = None
    self.era = era.number
    if not self.leads_to(era.number):
      return False
    address = self._proxies[era.number]
    service = self._services.by_address[address]
    who, slot = f"session: {self._host}", eras_lib.slot_of(era, number)
    if self._services.may_go_back:
      pass  # A number may be given again.
    elif service.era != dataclasses.replace(era, address=address):
      self._services.violate(f"{who} is in {service.era}, and not in {era}")
    elif slot in service.used:
      self._services.violate(f"{who} takes slot {slot} of {era} again")
    service.used.add(slot)
    service.ways[self] = None
    self._service = service
    return True

  def leads_to(self, era: int) -> bool:
    """Whether the service of an era answers that it is not connected to."""
    address = self._proxies.get(era)
    if not self._is_cut and address not in self._services.by_address:
      self._note_lost(era)
    return not self._is_cut and address in self._services.by_address

  def meet(self, now: bool) -> None:
    """Notes whether the worker connects with others, or may."""
    if now:
      self._services.meeting.add(self)
    else:
      self._services.meeting.discard(self)

  def answers(self) -> bool:
    """Whether the service of the worker does."""
    return self._service is not None and not self._is_cut

  @property
  def _is_cut(self) -> bool:
    return self._host in self._services.cut

  def _deliver(self, call: Callable[..., None], *args: Any) -> None:
    """Calls once the host can be reached."""
    if self._is_cut:
      self._clock.at(_AGAIN_SECS, self._deliver, call, *args)
    else:
      self._clock.at(_DELAY_SECS, call, *args)

  def _note_lost(self, era: int) -> None:
    if era in self._proxies and era not in self._lost:
      self._lost.add(era)
      self._tell(events_lib.ServiceLost(era))
