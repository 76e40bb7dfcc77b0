"""Ports of this machine."""

from collections.abc import Iterator
import contextlib
import socket


def free_port() -> int:
  """Returns a port of the loopback interface that is free now."""
  with socket.socket() as listener:
    listener.bind(("127.0.0.1", 0))
    return listener.getsockname()[1]


@contextlib.contextmanager
def held_port() -> Iterator[int]:
  """Gives a free port of the loopback interface to a server of gRPC.

  No other process gets it meanwhile.
  """
  with socket.socket() as holder:
    # Servers of gRPC set it too; whoever asks for any port gets another.
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    holder.bind(("127.0.0.1", 0))
    yield holder.getsockname()[1]
