"""Addresses of hosts, which are names, or numbers of IPv4 or IPv6."""

import socket
from typing import Any


def find(
    host: str, port: int, *, flags: int = 0
) -> tuple[socket.AddressFamily, Any]:
  """Returns the family and the address of a port, to listen or to connect.

  Of a name that has addresses of both families, that of IPv4 is taken.

  Args:
    flags: As those of `socket.getaddrinfo`, which may block to ask for a name;
      with `AI_NUMERICHOST` it asks nobody, and refuses names.

  Raises `socket.gaierror` if there is none.
  """
  found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
  family, *_, address = min(found, key=lambda one: one[0] != socket.AF_INET)
  return family, address


def render(host: str, port: int) -> str:
  """Returns `host:port`, with brackets around a number of IPv6."""
  return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
