"""Sockets that processes listen on, and what another user can do to them."""

from collections.abc import Iterable
import dataclasses
import os
import pathlib
import socket
import subprocess
import sys

_LISTENS = "0A"  # As the kernel writes the state of a socket of TCP.
_ACCEPTS = 1 << 16  # A flag of a Unix socket.
NOBODY = 65534
# Its arguments are a kind and a name; prints what it got.
_CALL = """
import encodings.idna, os, socket, ssl, sys  # All: nobody can read more.
kind, name, user = sys.argv[1:]
context = ssl.create_default_context()  # Reads files of this user.
os.setgroups([])
os.setgid(int(user))
os.setuid(int(user))
try:
  if kind == "unix":
    caller = socket.socket(socket.AF_UNIX)
    caller.settimeout(5)
    caller.connect(name.replace("@", chr(0), 1))
  else:
    caller = socket.create_connection(("127.0.0.1", int(name)), 5)
    caller.settimeout(2)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    caller = context.wrap_socket(caller)
  caller.sendall(b"GET / HTTP/1.1\\r\\n\\r\\n")
  said = caller.recv(100)
  print(f"said {said}" if said else "closed")
except TimeoutError:
  print("silent")
except OSError:
  print("closed")
"""


@dataclasses.dataclass(frozen=True)
class Listener:
  """A socket; `kind` is tcp or unix, `name` its port or path."""

  pid: int
  kind: str
  name: str


def find_descendants(pid: int) -> list[int]:
  """Returns a process and all that it has started, by number."""
  found = [pid]
  for parent in found:  # It grows meanwhile.
    for path in pathlib.Path(f"/proc/{parent}/task").glob("*/children"):
      found += map(int, path.read_text().split())
  return found


def find_listeners(pids: Iterable[int]) -> list[Listener]:
  """Returns all sockets that processes of this network listen on."""
  names = {}
  for table in ("tcp", "tcp6"):
    for line in _rows(table):
      if line[3] == _LISTENS:
        names[line[9]] = "tcp", str(int(line[1].rpartition(":")[2], 16))
  for line in _rows("unix"):
    if int(line[3], 16) & _ACCEPTS:
      names[line[6]] = "unix", line[7]
  found = []
  for pid in pids:
    for path in pathlib.Path(f"/proc/{pid}/fd").iterdir():
      try:
        target = os.readlink(path)
      except FileNotFoundError:
        continue  # It has been closed.
      inode = target.removeprefix("socket:[").removesuffix("]")
      if inode in names:
        found.append(Listener(pid, *names[inode]))
  return found


def call(listener: Listener) -> str:
  """Returns what another user gets who calls: closed, silent, or said ...."""
  command = [sys.executable, "-I", "-S", "-c", _CALL]
  return subprocess.run(
      [*command, listener.kind, listener.name, str(NOBODY)],
      capture_output=True,
      check=True,
      text=True,
  ).stdout.strip()


def hold(port: str, count: int) -> list[socket.socket]:
  """Returns connections that say nothing."""
  place = ("127.0.0.1", int(port))
  return [socket.create_connection(place) for _ in range(count)]


def _rows(table: str) -> list[list[str]]:
  text = pathlib.Path(f"/proc/net/{table}").read_text()
  return [line.split() for line in text.splitlines()[1:]]
