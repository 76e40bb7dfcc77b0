"""Forked processes that share imports and traced programs.

To import JAX and to trace the programs of a model takes seconds, so on one
machine one process does it for all:

  launcher   imports and traces
     |-- fork --> agent of a node
                    |-- fork --> waits for the command to be its worker

A copy runs the same module as a spawned process. Only the forking thread
survives in a copy, so no other thread may run before: no JAX devices, and an
agent forks the copy for its worker before it does anything else.
"""

from collections.abc import Callable, Collection, Sequence
import fcntl
import functools
import json
import os
import runpy
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import traceback
from typing import NoReturn

from absl import flags, logging
import setproctitle

from bamboo_jax.cluster import children

_POLL_SECS = 0.01
is_copy = False  # Whether this process is one.


class Copy:
  """A forked copy of this process, with the interface of `subprocess.Popen`."""

  def __init__(self, run: Callable[[], None], *, keeps: Collection[int] = ()) -> None:
    """Forks a copy that calls `run`.

    Of open files it has `keeps` and those that are only read.
    """
    assert threading.active_count() == 1, threading.enumerate()
    self.returncode: int | None = None
    self._lock = threading.Lock()
    sys.stdout.flush()
    sys.stderr.flush()
    original = os.getpid()
    self.pid = os.fork()
    if not self.pid:
      _live(run, keeps, original)

  def poll(self) -> int | None:
    """Returns the return code, None if it has not ended."""
    with self._lock:  # Only one thread may reap it.
      if self.returncode is None:
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid:
          self.returncode = os.waitstatus_to_exitcode(status)
      return self.returncode

  def wait(self, timeout: float | None = None) -> int:
    """Blocks until it has ended; may raise `subprocess.TimeoutExpired`."""
    if timeout is None and self.returncode is None:
      os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
    end_secs = time.monotonic() + (timeout or 0.0)
    while (code := self.poll()) is None:
      if time.monotonic() >= end_secs:
        raise subprocess.TimeoutExpired("a copy", timeout or 0.0)
      time.sleep(_POLL_SECS)
    return code

  def send_signal(self, number: int) -> None:
    """Sends a signal, unless it has ended."""
    if self.poll() is None:
      os.kill(self.pid, number)

  def terminate(self) -> None:
    self.send_signal(signal.SIGTERM)

  def kill(self) -> None:
    self.send_signal(signal.SIGKILL)


class Spare:
  """A forked process that waits for a command; it ends with its parent.

  Attributes:
    socket: Connected to it.
    pid: Its number.
  """

  def __init__(self) -> None:
    self.socket, theirs = socket.socketpair()
    with theirs:
      self._copy = Copy(lambda: _await_order(theirs), keeps=[theirs.fileno()])
    self.pid = self._copy.pid

  def start(self, command: Sequence[str], *, log: str) -> Copy:
    """Runs a command in it, with the number of its socket appended."""
    order = json.dumps({"command": [*command], "log": log})
    self.socket.sendall(order.encode() + b"\n")
    return self._copy


def prepare_successors(
    run: Callable[[socket.socket], None], *, keeps: Collection[int] = ()
) -> Callable[[], socket.socket]:
  """Prepares copies one after the other, which call `run` with their sockets.

  Returns a function that kills the last copy, and returns a socket to the next one. Copies
  share the memory of this process as it is now, so that it may have threads later, and they
  end with it.
  """
  orders, received = socket.socketpair()
  with received:
    Copy(lambda: _fork_in_turn(received, run, keeps), keeps=[received.fileno(), *keeps])

  def fork_next() -> socket.socket:
    ours, theirs = socket.socketpair()
    with theirs:
      socket.send_fds(orders, [b"."], [theirs.fileno()])
    return ours

  return fork_next


def _fork_in_turn(
    orders: socket.socket, run: Callable[[socket.socket], None], keeps: Collection[int]
) -> None:
  children.end_with_parent()
  last = None
  while fds := socket.recv_fds(orders, 1, 1)[1]:
    if last is not None:
      last.kill()
      last.wait()  # On a GPU its memory is free only now.
    with socket.socket(fileno=fds[0]) as end:
      last = Copy(functools.partial(run, end), keeps=[end.fileno(), *keeps])


def _await_order(end: socket.socket) -> None:
  children.end_with_parent()
  with end.makefile("rb", buffering=0) as file:  # Reads no more than the line.
    line = file.readline()
  if line:
    order = json.loads(line)
    run([*order["command"], str(end.detach())], log=order["log"])


def run(command: Sequence[str], *, log: str | os.PathLike[str]) -> None:
  """Runs a command [python, "-m", module, *arguments] in this copy."""
  with open(log, "ab") as file:
    for output in (1, 2):
      os.dup2(file.fileno(), output)
  module, *arguments = command[2:]
  setproctitle.setproctitle(" ".join(command))  # So `ps` and `pgrep` find it.
  for name in [*flags.FLAGS]:
    definer = flags.FLAGS.find_module_defining_flag(name)
    if "." in name or not (definer or "").startswith("absl."):
      delattr(flags.FLAGS, name)
    else:
      flags.FLAGS[name].unparse()
  logging.set_verbosity(logging.INFO)  # As `absl.app` begins.
  logging.get_absl_handler().setFormatter(logging.PythonFormatter())
  sys.argv = [module, *arguments]
  runpy.run_module(module, run_name="__main__", alter_sys=True)


def _live(run: Callable[[], None], keeps: Collection[int], original: int) -> NoReturn:
  """Runs a copy from the fork to its exit."""
  global is_copy
  is_copy, code = True, 1
  try:
    children.die_with_parent()
    if os.getppid() != original:  # It died before `die_with_parent`.
      sys.exit(1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    # Not closed: objects copied from the parent would close reused numbers.
    kept = {0, 1, 2, nothing, *keeps}
    for fd in {*map(int, os.listdir("/proc/self/fd"))} - kept:
      if os.path.exists(f"/proc/self/fd/{fd}") and not _reopen(fd):
        os.dup2(nothing, fd, inheritable=False)
    run()
    code = 0
  except SystemExit as end:
    code = end.code if isinstance(end.code, int) else int(end.code is not None)
  except BaseException:
    traceback.print_exc()
  finally:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _reopen(fd: int) -> bool:
  """Gives a file that is only read, such as data, a position of its own.

  Returns False if `fd` is anything else.
  """
  access = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE
  if access != os.O_RDONLY or not stat.S_ISREG(os.fstat(fd).st_mode):
    return False
  own = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
  os.lseek(own, os.lseek(fd, 0, os.SEEK_CUR), os.SEEK_SET)
  os.dup2(own, fd, inheritable=False)
  os.close(own)
  return True
