"""Etcd in memory, with leases on virtual time.

The server answers the requests that `etcd.Etcd` makes, so that is the real one.
"""

from collections.abc import Callable, Mapping
import functools
import itertools
from typing import Any

from bamboo_jax.cluster.store import etcd as etcd_lib

_decode = functools.lru_cache(1 << 12)(etcd_lib.decode)


class Server:
  """An etcd; `clock` tells the time.

  Attributes:
    is_full: Whether writes are refused.
    loses_answers: Whether answers get lost, half of them after the write.
  """

  def __init__(self, clock: Callable[[], float]) -> None:
    self.is_full = self.loses_answers = False
    self._watchers: list[tuple[str, Callable[[], None]]] = []
    self._clock = clock
    self._ids = itertools.count(1)
    self.forget()

  def forget(self) -> None:
    """Comes back empty; its number in its cluster is the same."""
    self._entries: dict[str, dict[str, str]] = {}
    self._leases: dict[str, tuple[int, float]] = {}  # Length and end.
    self._revision = 1
    self._tell("")

  def save(self) -> Callable[[], None]:
    """Returns what goes back to the values that there are now."""
    entries, revision = dict(self._entries), self._revision

    def restore() -> None:
      self._entries, self._revision = dict(entries), revision
      self._tell("")

    return restore

  def watch(self, prefix: str, after: int, call: Callable[[], None]) -> None:
    """Calls at the next change below `prefix`; at once if that has been.

    Also when its connection breaks: the server comes back with other data.
    """
    there = (e for k, e in self._entries.items() if _decode(k) >= prefix)
    if any(int(e["mod_revision"]) > after for e in there):
      call()
    else:
      self._watchers.append((prefix, call))

  def _tell(self, key: str) -> None:
    watchers, self._watchers = self._watchers, []
    for prefix, call in watchers:
      if not key or key.startswith(prefix):
        call()
      else:
        self._watchers.append((prefix, call))

  def client(self) -> etcd_lib.Etcd:
    """Returns a client of this server."""
    return etcd_lib.Etcd("store:1", transport=self.carry)

  def answer(self, path: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the answer to a request; `OSError` if there is no space."""
    match path:
      case "kv/range":
        found = self._range(request)
      case "kv/put":
        found = self._put(request)
      case "kv/txn":
        found = self._txn(request)
      case "lease/grant":
        self._check_space()
        lease, secs = f"{next(self._ids)}", int(request["TTL"])
        self._leases[lease] = secs, self._clock() + secs
        found = {"ID": lease}
      case "lease/keepalive":
        secs, end = self._leases.get(request["ID"], (0, float("-inf")))
        if end < self._clock():
          return {"result": {}}
        self._leases[request["ID"]] = secs, self._clock() + secs
        found = {"result": {"TTL": f"{secs}"}}
      case "lease/revoke":
        self._leases.pop(request["ID"], None)
        found = {}
    header = {"cluster_id": "1", "revision": f"{self._revision}"}
    return {"header": header, **found}

  def carry(
      self, host: str, port: int, path: str, request: Mapping[str, Any], timeout_secs: float
  ) -> etcd_lib.EtcdResponse:
    """Answers as a server does to a client."""
    del host, port, timeout_secs
    try:
      return etcd_lib.EtcdResponse(200, self.answer(path, request))
    except OSError as error:
      return etcd_lib.EtcdResponse(429, {"message": f"{error}"})

  def _find(self, key: str) -> dict[str, str] | None:
    entry = self._entries.get(key)
    if entry is None or entry["lease"] == "0":
      return entry
    is_over = self._leases.get(entry["lease"], (0, -1.0))[1] < self._clock()
    return None if is_over else entry

  def _range(self, request: Mapping[str, Any]) -> dict[str, Any]:
    first, end = request["key"], request.get("range_end")
    if end is None:
      found = [self._find(first)]
    else:
      # Base64 does not keep the order.
      first, end = _decode(first), _decode(end)
      keys = sorted((_decode(k), k) for k in self._entries)
      found = [self._find(code) for key, code in keys if first <= key < end]
    kvs = [kv for kv in found if kv is not None]
    return {"kvs": kvs[-1:] if "limit" in request else kvs}

  def _put(self, request: Mapping[str, str]) -> dict[str, Any]:
    self._check_space()
    self._revision += 1
    key = request["key"]
    self._entries[key] = {**request, "mod_revision": f"{self._revision}"}
    self._tell(_decode(key))
    return {}

  def _txn(self, request: Mapping[str, Any]) -> dict[str, Any]:
    if any("request_put" in wanted for wanted in request["success"]):
      self._check_space()
    for wanted in request["compare"]:
      found = self._find(wanted["key"])
      if wanted["target"] == "MOD":
        there = found["mod_revision"] if found else "0"
        fits = there == wanted["mod_revision"]
      else:
        fits = found is not None and found["value"] == wanted["value"]
      if not fits:
        failure = request.get("failure", ())
        answers = [self._range(r["request_range"]) for r in failure]
        return {"responses": [{"response_range": a} for a in answers]}
    answers = []
    for wanted in request["success"]:
      if "request_put" in wanted:
        self._put(wanted["request_put"])
      else:
        found = self._range(wanted["request_range"])
        answers.append({"response_range": found})
    return {"succeeded": True, "responses": answers}

  def _check_space(self) -> None:
    if self.is_full:
      raise OSError("etcdserver: mvcc: database space exceeded")
