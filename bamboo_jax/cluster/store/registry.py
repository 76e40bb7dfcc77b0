"""The keys of a run; see `etcd` for the list."""

from collections.abc import Iterable, Mapping
import dataclasses
import functools
import json
import time
from typing import Any, NamedTuple, TypeVar

from bamboo_jax import base
from bamboo_jax.base import json as json_lib, types
from bamboo_jax.cluster import views
from bamboo_jax.cluster.store import etcd as etcd_lib

LEASE_SECS = 5
_DIGITS = 8  # Digits of view numbers in keys, so that keys sort by number.
_ROOT = "/bamboo"
_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True)
class Sight:
  """The agents and views of a run in the store, at a `revision`."""

  revision: int
  members: list[views.Member]
  views: list[views.View]


class _Ticket(NamedTuple):
  zone: str
  incarnation: str
  name: str


class Rejected(NamedTuple):
  """The content of a store that was rejected; `stamp` is "" if it has none."""

  stamp: str
  view: views.View | None


class Registry:
  """The keys of one run; all calls block, and raise `OSError`."""

  def __init__(self, etcd: etcd_lib.Etcd, run: str) -> None:
    self._etcd = etcd
    self._prefix = f"{_ROOT}/{run}"
    self._run = run
    self._lease = 0
    self._guard: tuple[str, str] | None = None

  def stamp(self) -> str:
    """Returns the stamp of the run; "" if it has none yet."""
    return self._etcd.get(f"{self._prefix}/stamp") or ""

  def begin(self, stamp: str) -> None:
    """Gives the run a stamp, unless it has one."""
    self._etcd.create(f"{self._prefix}/stamp", stamp)

  def trust(self, stamp: str) -> None:
    """Rejects from now on a store without this stamp of the run."""
    self._guard = f"{self._prefix}/stamp", stamp

  def look(self, known: int) -> Sight:
    """Returns agents and views: from `known` on, only the last if it is 0.

    Raises `etcd.LostStoreError` if the store is rejected.
    """
    # Long runs have thousands, and nodes often join at the same time.
    after = f"{known - 1:0{_DIGITS}}" if known else None
    first = {"stamp": "", "nodes/": "", "views/": after}
    revision, (stamp, nodes, later) = self._etcd.look(
        [(f"{self._prefix}/{part}", after) for part, after in first.items()]
    )
    found = stamp.get(f"{self._prefix}/stamp", "")
    if self._guard is not None and found != self._guard[1]:
      raise self._etcd.lost(f"run {self._run!r} is {found or 'unknown'} there")
    return Sight(revision, _parse(views.Member, nodes.values()), _parse(views.View, later.values()))

  def wait(self, after: int | None, secs: float) -> None:
    """Waits for a change since a revision; None for the newest seen here."""
    after = self._etcd.revision if after is None else after
    self._etcd.wait(f"{self._prefix}/", after=after, secs=secs)

  def find_lost(self) -> Rejected:
    """Accepts a rejected store, and returns its content."""
    self._etcd.forget()
    return Rejected(self.stamp(), self.read_view())

  def restore(
      self, stamp: str, config: Mapping[str, Any], view: views.View, num_taken: int
  ) -> None:
    """Restores a run, from its members, in a store that has lost it.

    Numbers of nodes below `num_taken` are not given out again. The stamp is
    written last, as joining nodes wait for it, in one transaction with the
    view, as another run may start at the same time.
    """
    content = {
        "config": json.dumps(config, sort_keys=True),
        "placed": "true",
        **{f"tickets/{n}": '["", "", ""]' for n in range(num_taken)},
    }
    name = lambda key: f"{self._prefix}/{key}"
    for key, value in content.items():
      self._etcd.create(name(key), value)
    key, value = name(_view_key(view.number)), _render(view)
    if not self._etcd.create(name("stamp"), stamp, also={key: value}):
      # The store has merely gone back.
      self._etcd.create(key, value, guard=(name("stamp"), stamp))

  def check_config(self, config: Mapping[str, Any]) -> None:
    """Writes the common config, or raises `ValueError` with the differences."""
    if self._create("config", json.dumps(config, sort_keys=True)):
      return
    there, here = (
        {
            name: json.dumps(value, sort_keys=True)
            for name, value in json_lib.flatten(facts).items()
            if value != {}
        }
        for facts in (self.read_config(), config)
    )
    for name in sorted(there.keys() | here.keys()):
      if there.get(name) != here.get(name):
        raise ValueError(
            f"This node does not fit run {self._run!r} at etcd "
            f"{self._etcd.endpoints}: {name} is {there.get(name, 'absent')} "
            f"there and {here.get(name, 'absent')} here."
        )

  def take_ticket(self, zone: str, incarnation: str, name: str = "") -> base.NodeId:
    """Returns a new number; `ValueError` if none is left.

    Returns the same again if an earlier answer was lost.
    """
    tickets = self._tickets()
    for number, ticket in tickets.items():
      if ticket.incarnation == incarnation:
        return number
    value = json.dumps([zone, incarnation, name])
    for number in base.nodes(max(tickets, default=-1) + 1, types.MAX_NODES):
      if self._create(f"tickets/{number}", value):
        return number
    raise ValueError(
        f"Run {self._run!r} has had {types.MAX_NODES} nodes, dead ones "
        "included, and can have no more; start another with --run, which goes "
        "on from the last checkpoint, if there is one."
    )

  def zones(self) -> dict[base.NodeId, str]:
    """Returns the zones of all nodes that ever joined, by ticket.

    In the order of names (n2 before n10), not of joining, so that placement
    does not depend on which node joins first.
    """
    tickets = self._tickets()
    by_name = lambda n: (len(tickets[n].name), tickets[n].name, n)
    return {n: tickets[n].zone for n in sorted(tickets, key=by_name)}

  def agree_to_place(self, is_complete: bool) -> bool:
    """Agrees with all nodes whether the first ones are placed by zone.

    The first caller's `is_complete` decides; returns it.
    """
    if self._create("placed", json.dumps(is_complete)):
      return is_complete
    return self._etcd.get(f"{self._prefix}/placed") == "true"

  def register(self, member: views.Member) -> bool:
    """Registers an agent for as long as its lease is renewed.

    Returns False if another one has its name.
    """
    key, value = f"{self._prefix}/nodes/{member.name}", _render(member)
    there = self._etcd.get(key)
    if there and _parse(views.Member, [there]) != [member]:
      return False
    self._lease = self._etcd.grant_lease(LEASE_SECS)
    if there:  # An earlier answer was lost.
      self._etcd.put(key, value, lease=self._lease)
      return True
    return self._etcd.create(key, value, lease=self._lease)

  def renew(self, member: views.Member) -> None:
    """Renews the lease; registers again if it has expired."""
    if not self._etcd.keep_lease(self._lease):
      self.register(member)

  def leave(self) -> None:
    if self._lease:
      self._etcd.revoke_lease(self._lease)

  def members(self) -> list[views.Member]:
    return _parse(views.Member, self._below("nodes/").values())

  def write_status(self, status: Mapping[str, Any]) -> None:
    """Writes the status for `bamboo status`, with the time; decides nothing."""
    status = {"at_secs": time.time(), **status}
    self._etcd.put(f"/bamboo-status/{self._run}", json.dumps(status))

  def read_status(self) -> dict[str, Any]:
    """Returns the status, with `at_secs`; empty before the first."""
    found = self._etcd.get(f"/bamboo-status/{self._run}") or "{}"
    status: dict[str, Any] = json.loads(found)
    return status

  def exists(self) -> bool:
    return bool(self._etcd.get_keys(f"{self._prefix}/config"))

  def read_config(self) -> dict[str, Any]:
    """Returns the facts all nodes share; `ValueError` if there is no run."""
    if config := self._etcd.get(f"{self._prefix}/config"):
      facts: dict[str, Any] = json.loads(config)
      return facts
    keys = [key.split("/") for key in self._etcd.get_keys(f"{_ROOT}/")]
    runs = sorted({key[2] for key in keys if key[3:] == ["config"]})
    raise ValueError(
        f"There is no run {self._run!r} at etcd {self._etcd.endpoints}; there "
        f"is {', '.join(runs) or 'none'}."
    )

  def read_view(self) -> views.View | None:
    last = self._etcd.get_last(f"{self._prefix}/views/")
    return _parse(views.View, [last])[0] if last else None

  def read_views(self, after: base.ViewId) -> list[views.View]:
    """Returns all views with a number above `after`, in order."""
    after = _view_key(after).removeprefix("views/")
    found = self._etcd.get_all(f"{self._prefix}/views/", after=after)
    return _parse(views.View, found.values())

  def write_view(self, view: views.View) -> bool:
    """Writes the next view; returns False if there is another of its number."""
    return self._create(_view_key(view.number), _render(view))

  def _create(self, key: str, value: str) -> bool:
    return self._etcd.create(f"{self._prefix}/{key}", value, guard=self._guard)

  def _below(self, part: str) -> dict[str, str]:
    """Returns the values of a part of the keys, by the rest of the key."""
    prefix = f"{self._prefix}/{part}"
    found = self._etcd.get_all(prefix)
    return {key.removeprefix(prefix): value for key, value in found.items()}

  def _tickets(self) -> dict[base.NodeId, _Ticket]:
    """Returns the tickets of all nodes that ever joined, by number."""
    found = self._below("tickets/")
    return {base.NodeId(int(t)): _Ticket(*json.loads(value)) for t, value in found.items()}


def _view_key(number: base.ViewId) -> str:
  return f"views/{number:0{_DIGITS}}"


def _render(value: Any) -> str:
  return json.dumps(json_lib.to_plain(value))


def _parse(cls: type[_T], values: Iterable[str]) -> list[_T]:
  return [_parse_one(cls, value) for value in values]  # type: ignore[arg-type]


@functools.lru_cache(maxsize=4096)
def _parse_one(cls: type[_T], value: str) -> _T:
  """Cached, as each change is answered with all values."""
  return json_lib.from_plain(cls, json.loads(value))
