"""Ports of this machine."""

import socket


def free_port() -> int:
  """Returns a currently free TCP port of the loopback interface."""
  with socket.socket() as listener:
    listener.bind(("127.0.0.1", 0))
    port: int = listener.getsockname()[1]
    return port


def find_fault(port: int) -> str:
  """Returns why no server can listen at a port of the loopback interface.

  "" if one can.
  """
  with socket.socket() as listener:
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
      listener.bind(("127.0.0.1", port))
      listener.listen()  # Only this fails beside a listener of all interfaces.
    except OSError as error:
      return error.strerror or f"{error}"
    except OverflowError:
      return "ports are from 0 to 65535"
  return ""
