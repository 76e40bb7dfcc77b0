"""What a worker waits for, told on a signal; for `bamboo status --stacks`.

On SIGUSR2 a thread writes to the worker's log a line with the nodes that it
waits for, even if the main thread hangs. (On SIGUSR1 `faulthandler` writes the
stacks of all threads, even if the process hangs outside of Python.)
"""

from collections.abc import Callable, Iterable, Mapping
import contextlib
import dataclasses
import json
import os
import signal
import sys
import threading

from bamboo_jax import base
from bamboo_jax.base import json as json_lib
from bamboo_jax.schedule import channel as channel_lib

_MARK = "waits: "


@dataclasses.dataclass(frozen=True)
class Waits:
  """The nodes that node `number` waits for."""

  number: base.NodeId
  nodes: tuple[base.NodeId, ...]

  def render(self) -> str:
    """Returns the waits as a line for a log, which `parse` reads."""
    return _MARK + json.dumps(dataclasses.asdict(self))


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
        line = Waits(number, begun().waits_for).render()
        with contextlib.suppress(OSError):  # A full disk of logs.
          # In one write: with `print` the newline is another, and a line of
          # another thread may come between.
          sys.stderr.write(f"{line}\n")
          sys.stderr.flush()

  threading.Thread(target=answer, name="waits", daemon=True).start()


def parse(text: str) -> Waits | None:
  """Returns the last rendered `Waits` in a part of a log; None without one.

  Other threads and `faulthandler` may write to the same line of a log, before
  and after it.
  """
  _, mark, last = text.rpartition(_MARK)
  if not mark or "}" not in last:  # The log may be read while it is written.
    return None
  content, _ = json.JSONDecoder().raw_decode(last)
  return json_lib.from_plain(Waits, content)


def describe(waits: Iterable[Waits], names: Mapping[base.NodeId, str]) -> list[str]:
  """Returns a line for each worker, then one of the nodes that block others.

  `names` has the node of each number; others are shown by number.
  """
  name = lambda number: names.get(number, f"node {number}")
  waits = sorted(waits, key=lambda w: w.number)
  lines = []
  for one in waits:
    others = ", ".join(map(name, one.nodes)) or "no node"
    lines.append(f"{name(one.number)} waits for {others}")
  wanted = {node for one in waits for node in one.nodes}
  busy = {one.number for one in waits if not one.nodes}
  silent = wanted - {one.number for one in waits}
  if held := sorted(wanted & busy | silent):
    lines.append(f"waited for, and waiting for no node: {', '.join(map(name, held))}")
  return lines
