"""Addresses of hosts, which are names, or numbers of IPv4 or IPv6."""

import socket
from typing import Any, NamedTuple


class Address(NamedTuple):
  """Arguments of `socket`: family, and a numeric host with its port."""

  family: socket.AddressFamily
  parts: Any


def find(host: str, port: int, *, flags: int = 0) -> Address:
  """Returns the address of a port, to listen or to connect.

  IPv4 is preferred for a name with addresses of both families.

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


def free_port() -> int:
  """Returns a currently free TCP port of the loopback interface."""
  with socket.socket() as listener:
    listener.bind(("127.0.0.1", 0))
    port: int = listener.getsockname()[1]
    return port


def check_free(flag: str, host: str, port: int) -> None:
  """Raises `ValueError`, which names `flag`, if nobody may listen at a port."""
  if port > 65535:
    raise ValueError(f"{flag}: ports are up to 65535, got {port}.")
  family, address = find(host, port)
  with socket.socket(family) as listener:
    # As servers do: connections that were closed just now are no obstacle.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
      listener.bind(address)
      listener.listen()  # Only this fails beside a listener of all interfaces.
    except OSError as error:
      raise ValueError(
          f"{flag}: cannot listen at {render(host, port)}: {error.strerror}."
      ) from error
