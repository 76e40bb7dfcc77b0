"""The process of the worker, and a socket to it."""

import asyncio
from collections.abc import Callable, Sequence
import contextlib
import os
import signal
import socket
import subprocess
import sys
from typing import Any

from absl import logging

from bamboo_jax.base import threads
from bamboo_jax.cluster import children, copies, messages

_LOOK_SECS = 0.05  # Between two looks at whether it is dying.
_STACKS_SECS = 0.2  # For writing the stacks of a hanging worker.
_DEATH_SECS = 10.0  # That the kernel may take to remove it.


class WorkerProcess:
  """One worker process: the forked process `spare` if given, else a spawned one."""

  def __init__(self, spare: copies.Spare | None = None) -> None:
    self._spare = spare
    self._process: subprocess.Popen[bytes] | copies.Copy | None = None
    self._ended: asyncio.Future[int] | None = None
    self._writer: asyncio.StreamWriter | None = None
    self._cpu_ticks = 0

  async def start(
      self, command: Sequence[str], *, log: str, on_message: Callable[[Any], None]
  ) -> None:
    """Starts `command` with its socket's number appended; logs to `log`."""
    os.makedirs(os.path.dirname(log), exist_ok=True)
    if self._spare is not None:
      ours = self._spare.socket
      self._process = self._spare.start(command, log=log)
    else:
      ours, theirs = socket.socketpair()
      with theirs:
        self._process = children.start(
            [*command, str(theirs.fileno())],
            log,
            pass_fds=[theirs.fileno()],
            prepare=children.end_with_parent,
        )
    ended = threads.call_beside(self._process.wait, name="worker")
    self._ended = asyncio.wrap_future(ended)
    reader, self._writer = await asyncio.open_connection(sock=ours)
    self._reading = asyncio.create_task(self._read(reader, on_message))

  def send(self, message: Any) -> None:
    """Sends a message to the worker, once it has started."""
    if self._writer is not None and not self._writer.is_closing():
      self._writer.write(messages.encode(message))

  def is_stopped(self) -> bool:
    process = self._process
    return process is not None and children.is_stopped(process.pid)

  def is_busy(self) -> bool:
    """Whether the process has used a processor since the last call."""
    before = self._cpu_ticks
    if self._process is not None:
      self._cpu_ticks = children.cpu_ticks(self._process.pid)
    return self._cpu_ticks > before

  def reap_orphans(self) -> None:
    """Reaps what it has left; see `children.reap_orphans`."""
    own = (self._process, self._spare)
    children.reap_orphans({one.pid for one in own if one is not None})

  def kill_hanging(self) -> None:
    """Kills the process once it has written the stacks of its threads.

    The worker's code need not respond: `faulthandler` writes them in its signal
    handler. A stopped process cannot, so it is killed at once.
    """
    if self._process is None or self._process.returncode is not None or self.is_stopped():
      self.kill()
      return
    with contextlib.suppress(ProcessLookupError):
      os.kill(self._process.pid, signal.SIGUSR1)
    asyncio.get_running_loop().call_later(_STACKS_SECS, self.kill)

  def kill(self) -> None:
    """Kills the process, even if it is stopped."""
    if self._process is not None and self._process.returncode is None:
      try:
        os.kill(self._process.pid, signal.SIGKILL)
      except ProcessLookupError:
        print("The worker is gone already.", file=sys.stderr)

  async def close(self) -> None:
    """Kills the process, and waits until it is gone."""
    self.kill()
    if self._writer is not None:
      self._writer.close()
    if self._ended is not None:
      with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.shield(self._ended), _DEATH_SECS)

  async def wait(self) -> int:
    """Returns the exit status of the process, once it is ending."""
    assert self._process is not None and self._ended is not None and self._writer is not None
    while True:
      done, _ = await asyncio.wait([self._ended], timeout=_LOOK_SECS)
      code = self._ended.result() if done else children.find_exit(self._process.pid)
      if code is not None:
        break
    # It may have said something before its end, such as that the run is done. A process that it
    # has left may hold the other end, so the end is made here: what is in the socket already is
    # read nevertheless.
    with contextlib.suppress(OSError):  # It is closed already.
      self._writer.get_extra_info("socket").shutdown(socket.SHUT_RD)
    await asyncio.wait([self._reading])
    return code

  async def _read(self, reader: asyncio.StreamReader, on_message: Callable[[Any], None]) -> None:
    try:
      while True:
        on_message(await messages.read(reader, messages.FROM_WORKER))
    except EOFError:
      pass  # It has ended.
    except (OSError, ValueError) as error:
      logging.warning("The worker: %s", error)
      self.kill()  # It is gone, or sends garbage.
