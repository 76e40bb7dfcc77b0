"""A client of etcd, over the JSON gateway of its v3 API.

Only what a cluster needs: get, put, compare-and-swap and leases. Calls block,
each at most `timeout_secs`. Keys of a run, all below `/bamboo/RUN`:

  /config          JSON: version and config that all nodes must share
  /tickets/N       zone of the N-th node that has come
  /placed          whether the first nodes have the numbers of their places
  /eras/begun/K    JSON: coordination service and slots, see `eras.Era.to_json`
  /eras/wanted     number of the era that somebody needs
  /eras/used/NAME  number of the era that the worker of a node is in
  /views/N         JSON: view N, see `views.View.to_json`; never changed
  /nodes/NAME      JSON: address and zone of an agent, on its lease
  /status          JSON: progress, see `Registry.write_status`
"""

import base64
from collections.abc import Mapping
import dataclasses
import http.client
import json
from typing import Any


@dataclasses.dataclass(frozen=True)
class Entry:
  """A key that is there; `revision` changes with every write."""

  key: str
  value: str
  revision: int


class NoEtcdError(OSError):
  """No etcd listens at an endpoint, which may be the wrong one."""


def parse_endpoint(text: str) -> tuple[str, int]:
  """Returns host and port of `host:port`; `ValueError` if it is not that."""
  host, _, port = text.rpartition(":")
  if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
    raise ValueError(f"An endpoint is written host:port, got {text!r}.")
  return host, int(port)


class Etcd:
  """Talks to one endpoint; every call makes a connection of its own."""

  def __init__(
      self, host: str, port: int, *, timeout_secs: float = 2.0
  ) -> None:
    self._host = host
    self._port = port
    self._timeout_secs = timeout_secs

  @property
  def endpoint(self) -> str:
    """Host and port."""
    return f"{self._host}:{self._port}"

  def get(self, key: str) -> Entry | None:
    """Returns the entry of a key, None if there is none."""
    found = self._range({"key": _code(key)})
    return found[0] if found else None

  def get_all(self, prefix: str, *, after: str = "") -> list[Entry]:
    """Returns the entries with a prefix, in order, that come after `after`."""
    first = f"{prefix}{after}\0" if after else prefix
    return self._range({"key": _code(first), "range_end": _end_of(prefix)})

  def get_last(self, prefix: str) -> Entry | None:
    """Returns the last of the entries that `get_all` returns, if any."""
    found = self._range(
        {
            "key": _code(prefix),
            "range_end": _end_of(prefix),
            "sort_order": "DESCEND",
            "sort_target": "KEY",
            "limit": 1,
        }
    )
    return found[0] if found else None

  def put(self, key: str, value: str, *, lease: int = 0) -> None:
    """Writes a key, which vanishes with its lease if it has one."""
    self._call("kv/put", _put(key, value, lease))

  def swap(
      self, key: str, value: str, *, revision: int, lease: int = 0
  ) -> bool:
    """Writes a key of this revision, 0 for none; returns whether it did."""
    answer = self._call(
        "kv/txn",
        {
            "compare": [
                {
                    "key": _code(key),
                    "target": "MOD",
                    "mod_revision": str(revision),
                }
            ],
            "success": [{"request_put": _put(key, value, lease)}],
        },
    )
    return bool(answer.get("succeeded"))

  def grant_lease(self, secs: int) -> int:
    """Returns a new lease that lasts `secs` unless it is kept alive."""
    return int(self._call("lease/grant", {"TTL": str(secs)})["ID"])

  def keep_lease(self, lease: int) -> bool:
    """Renews a lease; returns whether it was still there."""
    answer = self._call("lease/keepalive", {"ID": str(lease)})
    return int(answer.get("result", {}).get("TTL", 0)) > 0

  def revoke_lease(self, lease: int) -> None:
    """Ends a lease, and removes the keys on it."""
    self._call("lease/revoke", {"ID": str(lease)})

  def _range(self, request: Mapping[str, Any]) -> list[Entry]:
    answer = self._call("kv/range", request)
    return [
        Entry(
            key=_decode(kv["key"]),
            value=_decode(kv.get("value", "")),  # Left out if it is empty.
            revision=int(kv["mod_revision"]),
        )
        for kv in answer.get("kvs", ())
    ]

  def _call(self, path: str, request: Mapping[str, Any]) -> dict[str, Any]:
    connection = http.client.HTTPConnection(
        self._host, self._port, timeout=self._timeout_secs
    )
    try:
      connection.request("POST", f"/v3/{path}", json.dumps(request))
      response = connection.getresponse()
      answer = json.loads(response.read())
    except (OSError, http.client.HTTPException, ValueError) as error:
      is_silent = isinstance(error, TimeoutError | ConnectionResetError)
      raise (OSError if is_silent else NoEtcdError)(
          f"Cannot reach etcd at {self.endpoint}: "
          f"{str(error) or type(error).__name__}."
      ) from error
    finally:
      connection.close()
    if response.status != 200:
      raise OSError(
          f"etcd at {self.endpoint} refuses {path}: "
          f"{answer.get('message', answer)}."
      )
    return answer


def _put(key: str, value: str, lease: int) -> dict[str, str]:
  return {"key": _code(key), "value": _code(value), "lease": str(lease)}


def _end_of(prefix: str) -> str:
  return _code(prefix[:-1] + chr(ord(prefix[-1]) + 1))


def _code(text: str) -> str:
  return base64.b64encode(text.encode()).decode()


def _decode(text: str) -> str:
  return base64.b64decode(text).decode()
