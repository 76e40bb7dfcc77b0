"""Endpoints of etcd: parses --etcd, and explains failed requests.

An etcd with TLS closes plain connections without an error message, and the
other way round; so after a failure the other way is tried, to advise the user.
"""

import contextlib
import http.client
import socket
import ssl
from typing import NamedTuple

from bamboo_jax.net import addresses

_PLAIN, _SECURE = "http://", "https://"


class Endpoints(NamedTuple):
  """Hosts and ports, and whether all of them use TLS."""

  places: list[tuple[str, int]]
  has_tls: bool


def parse(text: str) -> Endpoints:
  """Parses endpoints that are separated by commas.

  Raises `ValueError` if one is no `host:port`, or only some use TLS.
  """
  parts = text.split(",")
  are_secure = {part.startswith(_SECURE) for part in parts}
  if len(are_secure) > 1:
    raise ValueError(f"All endpoints of etcd take TLS ({_SECURE}), or none does, got " f"{text!r}.")
  return Endpoints([*map(_parse_one, parts)], are_secure == {True})


def advise(host: str, port: int, error: Exception, has_tls: bool, timeout_secs: float) -> str:
  """Returns a remedy for a failed request to etcd, "" if none is known.

  Blocks: sends one more request, without TLS if the failed one used TLS.
  """
  place = addresses.render(host, port)
  if isinstance(error, ssl.SSLCertVerificationError):
    return (
        f"The certificate of etcd at {place} is not of the same secret or "
        f"authority: {error.verify_message}."
    )
  if isinstance(error, TimeoutError | ConnectionRefusedError | socket.gaierror):
    return ""  # No server is there.
  # If both ways fail, only the first error is reported.
  with contextlib.suppress(OSError, http.client.HTTPException):
    if has_tls and _takes_http(host, port, timeout_secs):
      return f"The etcd at {place} does not use TLS: write {_PLAIN}{place}."
    if not has_tls and _takes_tls(host, port, timeout_secs):
      return (
          f"The etcd at {place} requires certificates: write {_SECURE}{place}, "
          "and give --secret or --certificates."
      )
  return ""


def _parse_one(text: str) -> tuple[str, int]:
  place = text.removeprefix(_SECURE).removeprefix(_PLAIN).removesuffix("/")
  host, _, port = place.rpartition(":")
  if host.startswith("[") and host.endswith("]"):
    host = host[1:-1]  # Of IPv6.
  is_port = port.isdecimal() and 0 < int(port) < 1 << 16
  if not host or "/" in host or not is_port:
    raise ValueError(
        "An endpoint of etcd is written host:port, [address]:port for IPv6, "
        f"with {_PLAIN} or {_SECURE} in front or neither, got {text!r}."
    )
  return host, int(port)


def _takes_http(host: str, port: int, secs: float) -> bool:
  plain = http.client.HTTPConnection(host, port, timeout=secs)
  with contextlib.closing(plain):
    plain.request("GET", "/version")
    plain.getresponse()
  return True


def _takes_tls(host: str, port: int, secs: float) -> bool:
  """Whether a server answers TLS, be it with a refusal."""
  context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
  context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
  with socket.create_connection((host, port), secs) as plain:
    try:
      context.wrap_socket(plain).close()
    except ssl.SSLError as error:
      return "ALERT" in (error.reason or "")
  return True
