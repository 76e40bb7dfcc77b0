"""What the nodes of a run keep in the store; see `etcd` for the keys."""

from collections.abc import Mapping
import json
from typing import Any

from bamboo_jax.cluster import views
from bamboo_jax.cluster.store import etcd as etcd_lib

LEASE_SECS = 5
_DIGITS = 8  # Of the number of a view in its key, so that keys are in order.
_ROOT = "/bamboo"


class Registry:
  """The keys of one run; all calls block, and raise `OSError`."""

  def __init__(self, etcd: etcd_lib.Etcd, run: str) -> None:
    self._etcd = etcd
    self._prefix = f"{_ROOT}/{run}"
    self._run = run
    self._lease = 0

  def check_facts(self, facts: Mapping[str, Any]) -> None:
    """Writes what all nodes must agree on, or compares it.

    Raises:
      ValueError: Another node came with something else; names what differs.
    """
    key = f"{self._prefix}/config"
    if self._etcd.swap(key, json.dumps(facts, sort_keys=True), revision=0):
      return
    there = _flatten(json.loads(self._etcd.get(key).value))
    here = _flatten(facts)
    for name in sorted(there.keys() | here.keys()):
      if there.get(name) != here.get(name):
        raise ValueError(
            f"This node does not fit run {self._run!r} at etcd "
            f"{self._etcd.endpoint}: {name} is {there.get(name, 'absent')} "
            f"there and {here.get(name, 'absent')} here."
        )

  def begin_anew(self) -> bool:
    """Returns whether the run has begun, and nobody is left of it.

    Then the current view becomes one without members.
    """
    view = self.read_view()
    if view is None:
      return False
    alive = {member.incarnation for member in self.members()}
    if any(member.incarnation in alive for member in view.members):
      return False
    if view.members:
      reason = f"nobody is left of view {view.number}"
      self.write_view(views.View(view.number + 1, (), reason, era=view.era))
    return True

  def take_ticket(self, most: int | None, *, zone: str) -> int:
    """Returns a number that no node of this run has had.

    Args:
      most: Number of numbers that there are, None for any.
      zone: Zone of the node.

    Raises:
      ValueError: All are taken.
    """
    ticket = 0
    while most is None or ticket < most:
      if self._etcd.swap(f"{self._prefix}/tickets/{ticket}", zone, revision=0):
        return ticket
      ticket += 1
    raise ValueError(
        f"Run {self._run!r} has had {most} nodes, dead ones included, and was "
        "started for no more."
    )

  def zones(self) -> dict[int, str]:
    """Returns the zones of all nodes that have ever come, by ticket."""
    prefix = f"{self._prefix}/tickets/"
    entries = self._etcd.get_all(prefix)
    return {int(e.key.removeprefix(prefix)): e.value for e in entries}

  def register(self, member: views.Member) -> None:
    """Lets others find an agent as long as its lease is renewed."""
    self._lease = self._etcd.grant_lease(LEASE_SECS)
    self._etcd.put(
        f"{self._prefix}/nodes/{member.name}",
        json.dumps(member.to_json()),
        lease=self._lease,
    )

  def renew(self, member: views.Member) -> None:
    """Renews the lease; registers again if it has run out."""
    if not self._etcd.keep_lease(self._lease):
      self.register(member)

  def leave(self) -> None:
    """Ends the lease."""
    if self._lease:
      self._etcd.revoke_lease(self._lease)

  def members(self) -> list[views.Member]:
    """Returns the agents that are registered."""
    entries = self._etcd.get_all(f"{self._prefix}/nodes/")
    return [views.Member.from_json(json.loads(e.value)) for e in entries]

  def write_status(self, status: Mapping[str, Any]) -> None:
    """Writes what `launch.status` shows beside the view."""
    self._etcd.put(f"{self._prefix}/status", json.dumps(status))

  def read_status(self) -> dict[str, Any]:
    """Returns what `write_status` wrote last; empty before."""
    entry = self._etcd.get(f"{self._prefix}/status")
    return json.loads(entry.value) if entry else {}

  def exists(self) -> bool:
    """Returns whether there is such a run."""
    return self._etcd.get(f"{self._prefix}/config") is not None

  def read_facts(self) -> dict[str, Any]:
    """Returns what `check_facts` wrote.

    Raises:
      ValueError: There is no such run; names those that there are.
    """
    entry = self._etcd.get(f"{self._prefix}/config")
    if entry is not None:
      return json.loads(entry.value)
    keys = [entry.key.split("/") for entry in self._etcd.get_all(f"{_ROOT}/")]
    runs = sorted({key[2] for key in keys if key[3:] == ["config"]})
    raise ValueError(
        f"There is no run {self._run!r} at etcd {self._etcd.endpoint}; there "
        f"is {', '.join(runs) or 'none'}."
    )

  def read_view(self) -> views.View | None:
    """Returns the current view; None before the first."""
    entry = self._etcd.get_last(f"{self._prefix}/views/")
    return _parse_view(entry) if entry else None

  def read_views(self, *, after: int) -> list[views.View]:
    """Returns all views with a number above `after`, in order."""
    name = f"{after:0{_DIGITS}}"
    entries = self._etcd.get_all(f"{self._prefix}/views/", after=name)
    return list(map(_parse_view, entries))

  def write_view(self, view: views.View) -> bool:
    """Writes the view that follows the current one.

    Returns:
      False if somebody else has written one with this number before.
    """
    key = f"{self._prefix}/views/{view.number:0{_DIGITS}}"
    return self._etcd.swap(key, json.dumps(view.to_json()), revision=0)


def _parse_view(entry: etcd_lib.Entry) -> views.View:
  return views.View.from_json(json.loads(entry.value))


def _flatten(content: Any, prefix: str = "") -> dict[str, str]:
  """Returns the leaves of a tree of dicts as JSON, by path."""
  if not isinstance(content, dict):
    return {prefix: json.dumps(content, sort_keys=True)}
  leaves = {}
  for key, value in content.items():
    leaves |= _flatten(value, f"{prefix}.{key}" if prefix else key)
  return leaves
