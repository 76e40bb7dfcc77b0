"""Addresses of hosts, which are names, or numbers of IPv4 or IPv6."""

import socket
from typing import Any, NamedTuple


class Address(NamedTuple):
  """An address as `socket` takes it; its first part is a number, no name."""

  family: socket.AddressFamily
  parts: Any


def find(host: str, port: int, *, flags: int = 0) -> Address:
  """Returns the address of a port, to listen or to connect.

  Of a name that has addresses of both families, that of IPv4 is taken.

  Args:
    flags: Those of `socket.getaddrinfo`, which may block to resolve a name;
      `AI_NUMERICHOST` rejects names.

  Raises `socket.gaierror` if there is none.
  """
  found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
  family, *_, address = min(found, key=lambda one: one[0] != socket.AF_INET)
  return Address(family, address)


def render(host: str, port: int) -> str:
  """Returns `host:port`, with brackets around a number of IPv6."""
  return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
