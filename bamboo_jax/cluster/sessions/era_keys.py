"""What the store knows of eras; see `etcd` for the keys.

The coordinator publishes eras. An agent for whose node the newest has no slot
asks for another one.
"""

from collections.abc import Collection
import json

from bamboo_jax.cluster.sessions import eras
from bamboo_jax.cluster.store import etcd as etcd_lib


class EraKeys:
  """The keys of one run; all calls block, and raise `OSError`."""

  def __init__(self, etcd: etcd_lib.Etcd, run: str) -> None:
    self._etcd = etcd
    self._prefix = f"/bamboo/{run}/eras/"

  def all(self) -> list[eras.Era]:
    """Returns all eras that have begun, the newest last."""
    entries = self._etcd.get_all(f"{self._prefix}begun/")
    found = [eras.Era.from_json(json.loads(entry.value)) for entry in entries]
    return sorted(found, key=lambda era: era.number)

  def publish(self, era: eras.Era) -> bool:
    """Makes an era the newest; returns False if there is one of its number."""
    key = f"{self._prefix}begun/{era.number}"
    return self._etcd.swap(key, json.dumps(era.to_json()), revision=0)

  def want(self, number: int) -> None:
    """Asks for an era."""
    self._etcd.put(f"{self._prefix}wanted", str(number))

  def wanted(self) -> int:
    """Returns the era that was asked for last, 0 if none was."""
    entry = self._etcd.get(f"{self._prefix}wanted")
    return int(entry.value) if entry else 0

  def use(self, name: str, number: int) -> None:
    """Notes which era the worker of a node is in."""
    self._etcd.put(f"{self._prefix}used/{name}", str(number))

  def used(self, names: Collection[str]) -> set[int]:
    """Returns the eras in which the workers of these nodes are."""
    prefix = f"{self._prefix}used/"
    entries = self._etcd.get_all(prefix)
    return {
        int(entry.value)
        for entry in entries
        if entry.key.removeprefix(prefix) in names
    }
