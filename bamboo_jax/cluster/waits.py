"""What a worker waits for, told on a signal; for `bamboo status --stacks`.

On SIGUSR2 a thread writes to the worker's log a line with the nodes that it
waits for, even if the main thread hangs. (On SIGUSR1 `faulthandler` writes the
stacks of all threads, even if the process hangs outside of Python.)
"""

from collections.abc import Callable, Sequence
import contextlib
import json
import os
import signal
import sys
import threading
from typing import NamedTuple

from bamboo_jax import base
from bamboo_jax.schedule import channel as channel_lib

_MARK = "waits: "


class Waits(NamedTuple):
  """The nodes that node `number` waits for; `str` is a line for a log, which `parse` reads."""

  number: base.NodeId
  nodes: Sequence[base.NodeId]

  def __str__(self) -> str:
    return _MARK + json.dumps(self)


def tell_on_signal(number: base.NodeId, begun: Callable[[], channel_lib.Begun]) -> None:
  """Makes SIGUSR2 write the `Waits` of this node to stderr, its log.

  Call in the main thread. `begun` returns the open transfers; it is called in
  another thread.
  """
  end, own = os.pipe()
  os.set_blocking(own, False)
  signal.set_wakeup_fd(own, warn_on_full_buffer=False)
  signal.signal(signal.SIGUSR2, lambda *unused: None)

  def answer() -> None:
    while caught := os.read(end, 64):
      if signal.SIGUSR2 in caught:
        with contextlib.suppress(OSError):  # A full disk of logs.
          # In one write: with `print` the newline is another, and a line of
          # another thread may come between.
          sys.stderr.write(f"{Waits(number, begun().waits_for)}\n")
          sys.stderr.flush()

  threading.Thread(target=answer, name="waits", daemon=True).start()


def parse(text: str) -> Waits | None:
  """Returns the last `Waits` in a part of a log; None without one.

  Other threads and `faulthandler` may write to the same line of a log, before
  and after it.
  """
  _, mark, last = text.rpartition(_MARK)
  if not mark or "]]" not in last:  # The log may be read while it is written.
    return None
  return Waits(*json.JSONDecoder().raw_decode(last)[0])
