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
from typing import Any

from bamboo_jax.net import addresses, identity as identity_lib

_BACKLOG = 512
_BUFFER_BYTES = 1 << 22
_UNIX = "unix:"
# Fits into what any link of IPv6 carries, also where a tunnel drops larger
# packets without a sign.
_SEGMENTS = (socket.IPPROTO_TCP, socket.TCP_MAXSEG, 1200)
_CREDENTIALS = struct.Struct("3i")  # Process, user and group.


Buffer = Any  # Bytes, a view of some, or an array of numpy.
Tls = tuple[identity_lib.Identity, float]  # And after how many silent seconds a peer is lost.


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

  def is_lost(self) -> bool:
    """Returns whether the connection is gone; nothing may be left to read."""
    poll = select.poll()
    poll.register(self._socket.fileno(), select.POLLIN | select.POLLRDHUP)
    return bool(poll.poll(0))

  def cut(self) -> None:
    """Ends the connection, in any thread; those that use it return."""
    with contextlib.suppress(OSError):  # It may be closed at the other end.
      # That of the plain socket, as another thread may be in one of TLS.
      socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

  def close(self) -> None:
    """Ends the connection; its number may then be that of another one."""
    self.cut()
    self._socket.close()


class Endpoint:
  """The listening socket of a node; also dials other nodes.

  Attributes:
    address: The text that others dial.
    listener: Accepts connections; raises `OSError` once it is closed.
  """

  def __init__(
      self, listener: socket.socket, address: str, identity: Tls | None = None, number: int = -1
  ) -> None:
    """Takes a socket that listens; `number` is the path of a Unix socket."""
    self.listener, self.address = listener, address
    self._tls, self._number = identity, number

  def secure(self, connection: socket.socket, *, is_server: bool) -> Wire:
    """Authenticates the other end of a connection, and returns it.

    Blocks for at most the timeout of the connection, which stays; raises
    `OSError` if the other end does not belong to the run.
    """
    if self._tls is None:
      _, user = _find_caller(connection)
      if user not in (os.getuid(), 0):
        raise ConnectionError(f"user {user} is not that of this run")
      return Wire(connection)
    identity, silence_secs = self._tls
    context = identity.server if is_server else identity.client
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_NODELAY, 1),
        # Counts while bytes are not acknowledged, or probes are not answered.
        (socket.TCP_USER_TIMEOUT, round(1e3 * silence_secs)),
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
      identity.check(wrapped, "worker")
    except BaseException:
      wrapped.close()
      raise
    return Wire(wrapped)

  def dial(self, address: str, timeout_secs: float) -> Wire:
    """Returns a secure connection to an address, with a timeout; raises `OSError`."""
    host, _, port = address.rpartition(":")
    family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
    connection = socket.socket(family if self._tls else socket.AF_UNIX)
    try:
      connection.settimeout(timeout_secs)
      if self._tls:
        connection.setsockopt(*_SEGMENTS)
        connection.connect((host.strip("[]"), int(port)))
      else:
        connection.connect(address.removeprefix(_UNIX))
      return self.secure(connection, is_server=False)
    except BaseException:
      connection.close()
      raise

  def close(self) -> None:
    """Stops listening, also for a thread that waits in `accept`."""
    with contextlib.suppress(OSError):
      self.listener.shutdown(socket.SHUT_RDWR)
    self.listener.close()
    if self._number >= 0:  # Once: the number may be reused afterwards.
      os.close(self._number)
      self._number = -1


def listen(host: str, identity: identity_lib.Identity, *, silence_secs: float) -> Endpoint:
  """Listens for other workers: on a loopback `host` on a Unix socket.

  `host` is a name or an address; raises `OSError` if it is not of this machine.
  For `silence_secs` see `listen_tls`; the kernel tells if a process has ended.
  """
  address = addresses.find(host, 0).parts[0]
  if ipaddress.ip_address(address).is_loopback:
    return listen_unix()
  return listen_tls(address, identity, silence_secs=silence_secs)


def listen_unix() -> Endpoint:
  """Listens on a Unix socket without a name."""
  listener = socket.socket(socket.AF_UNIX)
  # Until its name is removed it is in a directory that only this user may enter;
  # afterwards only processes of this user can open its path. Raises `OSError` if
  # the directory for temporary files does not support sockets.
  with tempfile.TemporaryDirectory() as path:  # Its mode is 0700.
    folder = os.open(path, os.O_PATH)
    try:  # By the number of the folder: names of sockets have 107 bytes.
      name = f"/proc/self/fd/{folder}/socket"
      listener.bind(name)
      number = os.open(name, os.O_PATH)
    finally:
      os.close(folder)
  listener.listen(_BACKLOG)
  return Endpoint(listener, f"{_UNIX}/proc/{os.getpid()}/fd/{number}", number=number)


def listen_tls(host: str, identity: identity_lib.Identity, *, silence_secs: float) -> Endpoint:
  """Listens on a free port of `host`, an address of IPv4 or IPv6.

  A connection is lost if the other host is silent for `silence_secs`. Raises
  `OSError` if it cannot listen.
  """
  family = socket.AF_INET6 if ":" in host else socket.AF_INET
  try:
    listener = socket.create_server((host, 0), family=family, backlog=_BACKLOG)
  except OSError as error:
    raise OSError(
        f"The worker cannot listen at {host}: {error.strerror}. Give an "
        "address of this machine with --host; ports that programs may take "
        "are those of net.ipv4.ip_local_port_range."
    ) from error
  listener.setsockopt(*_SEGMENTS)  # Accepted sockets inherit that.
  address = addresses.render(host, listener.getsockname()[1])
  return Endpoint(listener, address, (identity, silence_secs))


def name_caller(connection: socket.socket) -> str:
  """Returns where a connection that was accepted comes from."""
  if connection.family == socket.AF_UNIX:
    return "process {} of user {}".format(*_find_caller(connection))
  host, port, *_ = connection.getpeername()
  return f"{host}:{port}"


def _find_caller(connection: socket.socket) -> tuple[int, int]:
  """Returns process and user at the other end of a Unix socket."""
  found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
  process, user, _ = _CREDENTIALS.unpack(found)
  return process, user


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
