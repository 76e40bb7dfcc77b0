"""Etcd in memory, with leases on virtual time."""

from collections.abc import Callable
import itertools

from bamboo_jax.cluster.store import etcd as etcd_lib


class Etcd:
  """As much of `etcd.Etcd` as the registry needs; `clock` tells the time.

  Attributes:
    is_full: Whether writes are refused.
  """

  endpoint = "store"

  def __init__(self, clock: Callable[[], float]) -> None:
    self.is_full = False
    self._clock = clock
    self._entries: dict[str, tuple[etcd_lib.Entry, int]] = {}
    self._leases: dict[int, tuple[float, float]] = {}  # Length and end.
    self._revisions = itertools.count(1)
    self._ids = itertools.count(1)

  def forget(self) -> None:
    """Comes back empty."""
    self._entries.clear()
    self._leases.clear()
    self._revisions = itertools.count(1)

  def get(self, key: str) -> etcd_lib.Entry | None:
    """See `etcd.Etcd`."""
    entry, lease = self._entries.get(key, (None, 0))
    is_over = lease and self._leases.get(lease, (0, 0))[1] < self._clock()
    return None if is_over else entry

  def get_all(self, prefix: str, *, after: str = "") -> list[etcd_lib.Entry]:
    """See `etcd.Etcd`."""
    keys = (k for k in sorted(self._entries) if k.startswith(prefix))
    entries = (self.get(k) for k in keys if not after or k > prefix + after)
    return [e for e in entries if e is not None]

  def get_last(self, prefix: str) -> etcd_lib.Entry | None:
    """See `etcd.Etcd`."""
    return (self.get_all(prefix) or [None])[-1]

  def put(self, key: str, value: str, *, lease: int = 0) -> None:
    """See `etcd.Etcd`."""
    self._check_space()
    entry = etcd_lib.Entry(key, value, next(self._revisions))
    self._entries[key] = entry, lease

  def swap(
      self, key: str, value: str, *, revision: int, lease: int = 0
  ) -> bool:
    """See `etcd.Etcd`."""
    self._check_space()
    found = self.get(key)
    if (found.revision if found else 0) != revision:
      return False
    self.put(key, value, lease=lease)
    return True

  def grant_lease(self, secs: int) -> int:
    """See `etcd.Etcd`."""
    self._check_space()
    lease = next(self._ids)
    self._leases[lease] = secs, self._clock() + secs
    return lease

  def keep_lease(self, lease: int) -> bool:
    """See `etcd.Etcd`."""
    secs, end = self._leases.get(lease, (0, float("-inf")))
    if end < self._clock():
      return False
    self._leases[lease] = secs, self._clock() + secs
    return True

  def revoke_lease(self, lease: int) -> None:
    """See `etcd.Etcd`."""
    self._leases.pop(lease, None)

  def _check_space(self) -> None:
    if self.is_full:
      raise OSError("etcd refuses kv/put: mvcc: database space exceeded.")
