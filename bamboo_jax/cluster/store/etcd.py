"""A client of etcd, over the JSON gateway of its v3 API.

Only what a cluster needs: get, put, create, leases, and watching for a change.
Calls block, each at most `timeout_secs`. The keys of a run, all below
`/bamboo/RUN`, and its status, which no process waits for; each value is
prefixed with its signature by the secret of the run:

  /stamp           drawn once; a store without it has lost its data
  /config          JSON: version and config that all nodes must share
  /tickets/N       JSON: zone, incarnation and name of the N-th node
  /placed          whether the first nodes have the numbers of their places
  /views/N         JSON: view N, see `views.View`; never changed
  /nodes/NAME      JSON: address and zone of an agent, on its lease

  /bamboo-status/RUN  JSON: progress, see `Registry.write_status`
"""

import base64
from collections.abc import Callable, Mapping, Sequence
import contextlib
import hmac
import http.client
import json
import socket
import ssl
from typing import Any, NamedTuple

from bamboo_jax.cluster.store import endpoints as endpoints_lib
from bamboo_jax.net import addresses

_SEAL = 64  # Characters of a signature.


class NoEtcdError(OSError):
  """No etcd has ever answered at an endpoint; it may be the wrong one."""


class LostStoreError(OSError):
  """The store is not the former one, or has lost data."""


class ForgedError(OSError):
  """An entry has a wrong signature."""


def find_fault(version: str) -> str:
  """Returns a known fault of a release of etcd, or ""."""
  if version not in ("3.5.0", "3.5.1", "3.5.2"):
    return ""
  return (
      f"etcd {version} may contradict itself after it was killed (etcd issue "
      "13766). Take 3.5.3 or later, or 3.4."
  )


class EtcdResponse(NamedTuple):
  """HTTP status and JSON body of a response."""

  status: int
  body: dict[str, Any]


class Snapshot(NamedTuple):
  """Values by key in each of several ranges, at one revision."""

  revision: int
  ranges: list[dict[str, str]]


# Arguments: host, port, path, request, timeout in seconds.
Transport = Callable[[str, int, str, Mapping[str, Any], float], EtcdResponse]


class Etcd:
  """A client of an etcd, with persistent connections.

  A store with another cluster id or an older revision than before raises
  `LostStoreError` until `forget`; an entry signed with another `key` raises
  `ForgedError`.

  Args:
    endpoints: `host:port`, several separated by commas, all with `https://` in
      front if they use TLS. If one refuses, the next is tried; if one is
      silent, the next call starts with the next.
    tls: Has the certificate of this process, and the server's authority.
    transport: Carries requests; raises `OSError`.

  Attributes:
    revision: The newest that has been seen.
  """

  def __init__(
      self,
      endpoints: str,
      *,
      timeout_secs: float = 2.0,
      key: bytes = b"",
      tls: ssl.SSLContext | None = None,
      transport: Transport | None = None,
  ) -> None:
    self.endpoints = endpoints
    self._all, is_secure = endpoints_lib.parse(endpoints)
    if is_secure and not tls:
      raise ValueError(
          "A secret or certificates are needed for endpoints of etcd that take "
          f"TLS, got {endpoints!r}."
      )
    self._tls = tls if is_secure else None
    self._key = key
    self._turn = 0
    self._timeout_secs = timeout_secs
    self._transport = transport or self._post
    self.forget()
    self._was_there = False
    self._waiting: set[http.client.HTTPConnection] = set()
    self._idle: dict[tuple[str, int], list[http.client.HTTPConnection]] = {}

  def forget(self) -> None:
    """Accepts the store as it is now."""
    self._cluster, self.revision = "", 0

  def version(self) -> str:
    return str(self._call("maintenance/status", {})["version"])

  def get(self, key: str) -> str | None:
    return self._range({"key": _code(key)}).get(key)

  def get_all(self, prefix: str, *, after: str = "") -> dict[str, str]:
    """Returns the values by key with a prefix, in order, from `after` on."""
    return self._range(_range_of(prefix, after))

  def get_last(self, prefix: str) -> str | None:
    """Returns the last of the values that `get_all` returns, if any."""
    return next(iter(self._range(_range_of(prefix, None)).values()), None)

  def look(self, parts: Sequence[tuple[str, str | None]]) -> Snapshot:
    """Reads several ranges of keys in one transaction.

    Args:
      parts: Arguments of `get_all`, prefix and `after`; with None for `after`
        only the last value with the prefix is returned.
    """
    ranges = [{"request_range": _range_of(*part)} for part in parts]
    answer = self._call("kv/txn", {"compare": [], "success": ranges})
    found = [self._open(a["response_range"]) for a in answer["responses"]]
    return Snapshot(int(answer["header"]["revision"]), found)

  def wait(self, prefix: str, *, after: int, secs: float) -> None:
    """Waits for a change below `prefix` since revision `after`.

    Returns without one after `secs`, or after `stop_waiting`.
    """
    host, port = self._all[self._turn]
    request = {**_range_of(prefix), "start_revision": str(after + 1)}
    connection = self._connect(host, port, secs)
    try:
      body = json.dumps({"create_request": request})
      connection.request("POST", "/v3/watch", body)
      response = connection.getresponse()
      response.readline()  # That it has begun.
      self._waiting.add(connection)
      response.readline()
    except TimeoutError:
      return
    except (OSError, http.client.HTTPException, ValueError) as error:
      raise _unreached(host, port, error) from error
    finally:
      self._waiting.discard(connection)
      connection.close()

  def close(self) -> None:
    """Closes the connections that are kept."""
    for idle in list(self._idle.values()):
      with contextlib.suppress(IndexError):  # Other threads may take some.
        while True:
          idle.pop().close()

  def stop_waiting(self) -> None:
    """Ends all calls of `wait`."""
    for connection in list(self._waiting):
      if connection.sock is not None:
        with contextlib.suppress(OSError):
          connection.sock.shutdown(socket.SHUT_RDWR)

  def get_keys(self, prefix: str) -> list[str]:
    """Returns the keys with a prefix, without checking signatures."""
    request = {**_range_of(prefix), "keys_only": True}
    found = self._call("kv/range", request).get("kvs", ())
    return [decode(kv["key"]) for kv in found]

  def put(self, key: str, value: str, *, lease: int = 0) -> None:
    """Writes a key, which is deleted with its lease if it has one."""
    self._call("kv/put", self._put(key, value, lease))

  def create(
      self,
      key: str,
      value: str,
      *,
      also: Mapping[str, str] | None = None,
      guard: tuple[str, str] | None = None,
      lease: int = 0,
  ) -> bool:
    """Creates a key; returns False if it exists.

    It is deleted with its lease if it has one. The keys of `also` are written
    in the same transaction. With a `guard`, a key and its value, raises
    `LostStoreError` if the guard does not hold.
    """
    compare = [{"key": _code(key), "target": "MOD", "mod_revision": "0"}]
    pairs = ((key, value), *(also or {}).items())
    puts = [self._put(*pair, lease) for pair in pairs]
    request: dict[str, Any] = {
        "compare": compare,
        "success": [{"request_put": put} for put in puts],
    }
    if guard is not None:
      name, wanted = _code(guard[0]), _code(self._seal(*guard))
      compare.append({"key": name, "target": "VALUE", "value": wanted})
      request["failure"] = [{"request_range": {"key": name}}]
    answer = self._call("kv/txn", request)
    if answer.get("succeeded"):
      return True
    if guard is not None:
      (found,) = answer["responses"]
      kvs = found["response_range"].get("kvs", ())
      if [kv["value"] for kv in kvs] != [wanted]:
        raise self.lost(f"it has no {guard[0]} with {guard[1]} any more")
    return False

  def grant_lease(self, secs: int) -> int:
    """Returns a new lease that expires after `secs` unless renewed."""
    return int(self._call("lease/grant", {"TTL": str(secs)})["ID"])

  def keep_lease(self, lease: int) -> bool:
    """Renews a lease; returns False if it has expired."""
    answer = self._call("lease/keepalive", {"ID": str(lease)})
    return int(answer.get("result", {}).get("TTL", 0)) > 0

  def revoke_lease(self, lease: int) -> None:
    self._call("lease/revoke", {"ID": str(lease)})

  def _range(self, request: Mapping[str, Any]) -> dict[str, str]:
    return self._open(self._call("kv/range", request))

  def _open(self, found: Mapping[str, Any]) -> dict[str, str]:
    """Returns the values, which were signed with the key."""
    values = {}
    for kv in found.get("kvs", ()):
      key, sealed = decode(kv["key"]), decode(kv.get("value", ""))
      value = sealed[_SEAL:]
      if not hmac.compare_digest(self._seal(key, value).encode(), sealed.encode()):
        raise ForgedError(
            f"{key} at etcd {self.endpoints} was not written with the secret " "of this run."
        )
      values[key] = value
    return values

  def _seal(self, key: str, value: str) -> str:
    text = f"{key}\0{value}".encode()
    return hmac.new(self._key, text, "sha256").hexdigest() + value

  def _put(self, key: str, value: str, lease: int = 0) -> dict[str, Any]:
    sealed = _code(self._seal(key, value))
    return {"key": _code(key), "value": sealed, "lease": str(lease)}

  def _connect(self, host: str, port: int, secs: float) -> http.client.HTTPConnection:
    if self._tls is None:
      return http.client.HTTPConnection(host, port, timeout=secs)
    return http.client.HTTPSConnection(host, port, timeout=secs, context=self._tls)

  def _post(
      self, host: str, port: int, path: str, request: Mapping[str, Any], timeout_secs: float
  ) -> EtcdResponse:
    idle = self._idle.setdefault((host, port), [])
    try:
      connection = idle.pop()
    except IndexError:
      connection = self._connect(host, port, timeout_secs)
    try:
      connection.request("POST", f"/v3/{path}", json.dumps(request))
      response = connection.getresponse()
      answer = EtcdResponse(response.status, _parse(response.read()))
    except (OSError, http.client.HTTPException, ValueError) as error:
      connection.close()
      self.close()  # The server may have restarted.
      if not self._was_there:
        has_tls, secs = self._tls is not None, self._timeout_secs
        if advice := endpoints_lib.advise(host, port, error, has_tls, secs):
          raise NoEtcdError(advice) from error
      raise _unreached(host, port, error) from error
    idle.append(connection)
    return answer

  def _call(self, path: str, request: Mapping[str, Any]) -> dict[str, Any]:
    floor = self.revision
    for is_last in [False] * (len(self._all) - 1) + [True]:
      turn = self._turn
      host, port = self._all[turn]
      try:
        status, answer = self._transport(host, port, path, request, self._timeout_secs)
      except OSError as error:
        self._turn = (turn + 1) % len(self._all)
        if is_last or not isinstance(error, NoEtcdError):
          if self._was_there:  # It may come back.
            raise OSError(f"{error}") from error
          raise
        continue
      break
    if status != 200 or not answer.keys() & {"header", "result"}:
      self._turn = (turn + 1) % len(self._all)
      raise OSError(
          f"etcd at {addresses.render(host, port)} refuses {path}: "
          f"{answer.get('message', answer)}."
      )
    if path.startswith("kv/"):  # Answers about leases may be older.
      self._check(answer["header"], floor)
    return answer

  def _check(self, header: Mapping[str, str], floor: int) -> None:
    """Rejects an answer older than one received before the request."""
    cluster, revision = header["cluster_id"], int(header["revision"])
    if self._cluster not in ("", cluster):
      raise self.lost(f"it is cluster {cluster}, and was {self._cluster}")
    if revision < floor:
      raise self.lost(f"it has gone back from revision {floor} to {revision}")
    self._cluster, self.revision = cluster, max(self.revision, revision)
    self._was_there = True

  def lost(self, why: str) -> LostStoreError:
    """Returns the error for a store that is rejected, with the reason."""
    return LostStoreError(f"etcd at {self.endpoints} has lost its data, or is another one: {why}.")


def _unreached(host: str, port: int, error: Exception) -> OSError:
  is_silent = isinstance(error, TimeoutError | ConnectionResetError)
  why = str(error) or type(error).__name__
  kind = OSError if is_silent else NoEtcdError
  return kind(f"Cannot reach etcd at {addresses.render(host, port)}: {why}.")


def _parse(body: bytes) -> dict[str, Any]:
  """Returns a JSON object; `ValueError` if it is none, such as of a proxy."""
  answer = None
  with contextlib.suppress(ValueError):
    answer = json.loads(body)
  if not isinstance(answer, dict):
    raise ValueError(f"it is not etcd, and answers {body[:40]!r}")
  return answer


def _range_of(prefix: str, after: str | None = "") -> dict[str, Any]:
  """Returns all keys with a prefix, from `after` on; the last if it is None."""
  first = f"{prefix}{after}\0" if after else prefix
  end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
  last = {"sort_order": "DESCEND", "sort_target": "KEY", "limit": 1}
  found = {"key": _code(first), "range_end": _code(end)}
  return found | last if after is None else found


def _code(text: str) -> str:
  return base64.b64encode(text.encode()).decode()


def decode(text: str) -> str:
  """Returns the text of a base64 key or value.

  Bytes that are not UTF-8 are replaced, so that their signature is invalid.
  """
  return base64.b64decode(text).decode(errors="replace")
