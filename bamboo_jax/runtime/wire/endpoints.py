"""How nodes reach each other: where one listens, and how one dials.

On one machine that is a Unix socket without a name in the file system. Only
processes of this user can open its path, a file descriptor of its owner, and
the kernel reports the user at the other end. It vanishes with its owner.
Between machines it is mutual TLS with the identities of the run. An address is
the text that others dial: "unix:PATH" or "HOST:PORT".
"""

from collections.abc import Sequence
import contextlib
import ipaddress
import os
import select
import socket
import ssl
import struct
import tempfile
from typing import Any, Protocol

from bamboo_jax.net import addresses, identity as identity_lib

_BACKLOG = 512
_BUFFER_BYTES = 1 << 22
_UNIX = "unix:"
# Fits into what any link of IPv6 carries, also where a tunnel drops larger
# packets without a sign.
_SEGMENTS = (socket.IPPROTO_TCP, socket.TCP_MAXSEG, 1200)
_CREDENTIALS = struct.Struct("3i")  # Process, user and group.


Buffer = Any  # Bytes, a view of some, or an array of numpy.


class Wire:
  """A connected socket, plain or TLS; methods raise `OSError` once it is gone.

  One thread at a time reads or writes, as OpenSSL demands; the thread that owns
  a connection closes it, once no other one uses it.
  """

  def __init__(self, connection: socket.socket) -> None:
    self._socket = connection
    self._is_plain = not isinstance(connection, ssl.SSLSocket)
    if self._is_plain:
      for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        connection.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)

  def set_timeout(self, secs: float | None) -> None:
    """Sets how long a read or write may wait; None: for ever."""
    self._socket.settimeout(secs)

  def write(self, buffers: Sequence[Buffer]) -> None:
    for buffer in buffers:
      if len(buffer):
        self._socket.sendall(buffer)

  def read_into(self, view: memoryview) -> None:
    """Fills `view`; blocks."""
    flags = socket.MSG_WAITALL if self._is_plain else 0
    while view:
      size = self._socket.recv_into(view, len(view), flags)
      if not size:
        raise ConnectionError("closed by the other end")
      view = view[size:]

  def wait_until_lost(self) -> None:
    """Blocks until the connection is gone; nothing may be left to read."""
    poll = select.poll()
    poll.register(self._socket.fileno(), select.POLLIN | select.POLLRDHUP)
    poll.poll()

  def cut(self) -> None:
    """Ends the connection, in any thread; those that use it return."""
    with contextlib.suppress(OSError):  # It may be closed at the other end.
      # That of the plain socket, as another thread may be in one of TLS.
      socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

  def close(self) -> None:
    """Ends the connection; its number may then be that of another one."""
    self.cut()
    self._socket.close()


class Endpoint(Protocol):
  """The listening socket of a node; also dials other nodes.

  Attributes:
    address: The text that others dial.
    listener: Accepts connections; raises `OSError` once it is closed.
  """

  address: str
  listener: socket.socket

  def secure(self, connection: socket.socket, *, is_server: bool) -> Wire:
    """Authenticates the other end of a connection, and returns it.

    Blocks for at most the timeout of the connection, which stays; raises
    `OSError` if the other end does not belong to the run.
    """

  def dial(self, address: str, timeout_secs: float) -> Wire:
    """Returns a secure connection to an address, with a timeout; raises `OSError`."""

  def close(self) -> None:
    """Stops listening."""


class UnixEndpoint:
  """Listens on a Unix socket without a name."""

  def __init__(self) -> None:
    self.listener = socket.socket(socket.AF_UNIX)
    # Until its name is removed it is in a directory that only this user may enter;
    # afterwards only processes of this user can open its path. Raises `OSError` if
    # the directory for temporary files does not support sockets.
    with tempfile.TemporaryDirectory() as path:  # Its mode is 0700.
      folder = os.open(path, os.O_PATH)
      try:  # By the number of the folder: names of sockets have 107 bytes.
        name = f"/proc/self/fd/{folder}/socket"
        self.listener.bind(name)
        self._number = os.open(name, os.O_PATH)
      finally:
        os.close(folder)
    self.listener.listen(_BACKLOG)
    self.address = f"{_UNIX}/proc/{os.getpid()}/fd/{self._number}"

  def secure(self, connection: socket.socket, *, is_server: bool) -> Wire:
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(found)
    if user not in (os.getuid(), 0):
      raise ConnectionError(f"user {user} is not that of this run")
    return Wire(connection)

  def dial(self, address: str, timeout_secs: float) -> Wire:
    return _dial(self, socket.AF_UNIX, address.removeprefix(_UNIX), timeout_secs)

  def close(self) -> None:
    # Once: the number may be reused afterwards.
    if self.listener.fileno() >= 0:
      _close(self.listener)
      os.close(self._number)


class TlsEndpoint:
  """Listens on a free port of `host`, an address of IPv4 or IPv6.

  Raises `OSError` if it cannot.
  """

  def __init__(self, host: str, identity: identity_lib.Identity, *, silence_secs: float) -> None:
    """A connection is lost if the other host is silent for `silence_secs`."""
    self._identity, self._silence_ms = identity, round(1e3 * silence_secs)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
      self.listener = socket.create_server((host, 0), family=family, backlog=_BACKLOG)
    except OSError as error:
      raise OSError(
          f"The worker cannot listen at {host}: {error.strerror}. Give an "
          "address of this machine with --host; ports that programs may take "
          "are those of net.ipv4.ip_local_port_range."
      ) from error
    self.listener.setsockopt(*_SEGMENTS)  # Accepted sockets inherit that.
    port = self.listener.getsockname()[1]
    self.address = addresses.render(host, port)

  def secure(self, connection: socket.socket, *, is_server: bool) -> Wire:
    context = self._identity.server if is_server else self._identity.client
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_NODELAY, 1),
        # Counts while bytes are not acknowledged, or probes are not answered.
        (socket.TCP_USER_TIMEOUT, self._silence_ms),
        (socket.TCP_KEEPIDLE, 1),  # Seconds without bytes before a probe,
        (socket.TCP_KEEPINTVL, 1),  # and between probes.
    ):
      connection.setsockopt(socket.IPPROTO_TCP, option, value)
    try:
      wrapped = context.wrap_socket(connection, server_side=is_server)
    except ssl.SSLError as error:
      raise ConnectionError(
          "one end does not accept the certificate of the other "
          f"({error.reason or error}): start all nodes with one --secret"
      ) from error
    try:
      self._identity.check(wrapped, "worker")
    except BaseException:
      wrapped.close()
      raise
    return Wire(wrapped)

  def dial(self, address: str, timeout_secs: float) -> Wire:
    host, _, port = address.rpartition(":")
    family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
    return _dial(self, family, (host.strip("[]"), int(port)), timeout_secs)

  def close(self) -> None:
    _close(self.listener)


def listen(host: str, identity: identity_lib.Identity, *, silence_secs: float) -> Endpoint:
  """Listens for other workers: on a loopback `host` on a Unix socket.

  `host` is a name or an address; raises `OSError` if it is not of this machine.
  For `silence_secs` see `TlsEndpoint`; the kernel tells if a process has ended.
  """
  address = addresses.find(host, 0).parts[0]
  if ipaddress.ip_address(address).is_loopback:
    return UnixEndpoint()
  return TlsEndpoint(address, identity, silence_secs=silence_secs)


def name_caller(connection: socket.socket) -> str:
  """Returns where a connection that was accepted comes from."""
  if connection.family == socket.AF_UNIX:
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, user, _ = _CREDENTIALS.unpack(found)
    return f"process {process} of user {user}"
  host, port, *_ = connection.getpeername()
  return f"{host}:{port}"


def explain(error: OSError) -> str:
  """Returns the cause of a failed dial, with advice where there is some."""
  match error:
    case ConnectionRefusedError():
      return "no process listens there; its worker has ended"
    case TimeoutError():
      return (
          "no answer. Either its machine is gone, or a firewall drops packets "
          "silently: nodes must reach all TCP ports of each other"
      )
  return str(error) or type(error).__name__


def _dial(
    endpoint: Endpoint, family: int, address: str | tuple[str, int], timeout_secs: float
) -> Wire:
  connection = socket.socket(family)
  try:
    if family != socket.AF_UNIX:
      connection.setsockopt(*_SEGMENTS)
    connection.settimeout(timeout_secs)
    connection.connect(address)
    return endpoint.secure(connection, is_server=False)
  except BaseException:
    connection.close()
    raise


def _close(listener: socket.socket) -> None:
  """Closes a listener, also for a thread that waits in `accept`."""
  with contextlib.suppress(OSError):
    listener.shutdown(socket.SHUT_RDWR)
  listener.close()
