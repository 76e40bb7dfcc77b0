"""Where etcd is: endpoints as users write them, and what may be wrong.

An etcd that takes TLS closes the connection of who does not, without a word,
and the other way round; so it is asked in the other way what it would take.
"""

import contextlib
import http.client
import socket
import ssl

from bamboo_jax.cluster import addresses

_PLAIN, _SECURE = "http://", "https://"


def parse(text: str) -> tuple[list[tuple[str, int]], bool]:
  """Returns hosts and ports, with commas between, and whether they take TLS.

  Raises `ValueError` if one is no `host:port`, or only some take TLS.
  """
  parts = text.split(",")
  are_secure = {part.startswith(_SECURE) for part in parts}
  if len(are_secure) > 1:
    raise ValueError(
        f"All endpoints of etcd take TLS ({_SECURE}), or none does, got "
        f"{text!r}."
    )
  return [*map(_parse_one, parts)], are_secure == {True}


def advise(
    host: str, port: int, error: Exception, has_tls: bool, timeout_secs: float
) -> str:
  """Returns what to change after a request has failed, "" if it is not known.

  Blocks; asks the server once more, without TLS if it was asked with it.
  """
  place = addresses.render(host, port)
  if isinstance(error, ssl.SSLCertVerificationError):
    return (
        f"The certificate of etcd at {place} is not of the same secret or "
        f"authority: {error.verify_message}."
    )
  if isinstance(error, TimeoutError | ConnectionRefusedError | socket.gaierror):
    return ""  # Nobody is there.
  # Neither if that fails too, so what was asked first is what to report.
  with contextlib.suppress(OSError, http.client.HTTPException):
    if has_tls and _takes_http(host, port, timeout_secs):
      return f"The etcd at {place} takes no TLS: write {_PLAIN}{place}."
    if not has_tls and _takes_tls(host, port, timeout_secs):
      return (
          f"The etcd at {place} wants certificates: write {_SECURE}{place}, "
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
