"""Ports of this machine."""

import socket


def free_port() -> int:
  """Returns a port of the loopback interface that is free now."""
  with socket.socket() as listener:
    listener.bind(("127.0.0.1", 0))
    return listener.getsockname()[1]


def check_port(host: str, port: int) -> None:
  """Raises `ValueError` if the port is taken."""
  with socket.socket() as listener:
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
      listener.bind((host, port))
    except OSError as error:
      raise ValueError(
          f"Cannot listen on {host}:{port}: {error.strerror}."
      ) from error
