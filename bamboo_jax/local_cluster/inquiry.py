"""Asks the workers of this machine what they do; see `cluster.waits`."""

from collections.abc import Collection, Iterable, Mapping
import contextlib
import os
import pathlib
import signal
import time
from typing import NamedTuple

from bamboo_jax import base
from bamboo_jax.cluster import waits as waits_lib

_PROGRAM = b"bamboo_jax.launch.worker"
_LOOK_SECS = 0.05
_PATIENCE_SECS = 3.0
_STACKS = ("Thread 0x", "Current thread 0x", "  File ")


class WorkerReply(NamedTuple):
  """The answer of a worker about its state, from its log.

  Attributes:
    stacks: Python stacks of its threads; "" if it is stopped.
    waits: The nodes it waits for; None if it hangs or is stopped.
  """

  name: str
  pid: int
  stacks: str
  waits: waits_lib.Waits | None


def find_workers(logs: pathlib.Path) -> dict[str, int]:
  """Returns the process ids of the workers that log to `logs`, by node."""
  found: dict[str, dict[int, int]] = {}  # With the parent of each.
  for process in pathlib.Path("/proc").glob("[0-9]*"):
    with contextlib.suppress(OSError):  # It has ended, or is another user's.
      log = (process / "fd/2").readlink()
      is_worker = _PROGRAM in (process / "cmdline").read_bytes()
      if is_worker and log.parent == logs.resolve():
        _, parent, *_ = (process / "stat").read_text().rpartition(")")[2].split()
        found.setdefault(log.stem, {})[int(process.name)] = int(parent)
  return {  # A worker forks children, which look like it.
      name: pid
      for name, parents in sorted(found.items())
      for pid, parent in parents.items()
      if parent not in parents
  }


def explain_missing(name: str, workers: Collection[str], hosts: Mapping[str, str]) -> str:
  """Returns why `workers`, those of this machine by node, lack a node.

  `hosts` has the address of each live agent of the run, by node.
  """
  if not workers and not hosts:
    return "The run has ended: no node of it is alive."
  if name not in hosts:
    return base.suggest(name, {*workers, *hosts}, what="node")
  return (
      f"No worker of node {name} runs on this machine. Its agent is at "
      f"{hosts[name]}: run the command there, or wait until the worker starts."
  )


def ask(
    workers: Mapping[str, int], logs: pathlib.Path, *, patience_secs: float = _PATIENCE_SECS
) -> list[WorkerReply]:
  """Signals workers to log stacks and waits; returns these as answers.

  Blocks until all have answered, for at most `patience_secs`.

  Args:
    workers: Process ids by node, see `find_workers`.
    logs: Folder of their logs.
  """
  files = {name: logs / f"{name}.log" for name in workers}
  sizes = {name: file.stat().st_size for name, file in files.items()}
  for pid in workers.values():
    for number in (signal.SIGUSR1, signal.SIGUSR2):
      with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
  end_secs = time.monotonic() + patience_secs
  while True:
    said = {n: file.read_bytes()[sizes[n] :] for n, file in files.items()}
    texts = {n: content.decode(errors="replace") for n, content in said.items()}
    waits = {name: waits_lib.parse(text) for name, text in texts.items()}
    if all(waits.values()) or time.monotonic() > end_secs:
      return [
          WorkerReply(
              name,
              pid,
              # Lines of `faulthandler`.
              "\n".join(l for l in texts[name].splitlines() if l.startswith(_STACKS)),
              waits[name],
          )
          for name, pid in workers.items()
      ]
    time.sleep(_LOOK_SECS)


def render(replies: Iterable[WorkerReply]) -> list[str]:
  """Returns as lines the stacks of each worker, which waits for which, and the nodes in the way."""
  lines, names, waits = [], {}, {}
  for one in replies:
    state = "" if one.waits else ", which does not answer: it hangs or is stopped"
    lines += [f"== {one.name}, process {one.pid}{state}", one.stacks]
    if one.waits:
      number, waits[number] = one.waits
      names[number] = one.name
  show = lambda nodes: ", ".join(names.get(n, f"node {n}") for n in nodes) or "no node"
  lines += ["==", *(f"{show([n])} waits for {show(waits[n])}" for n in sorted(waits))]
  wanted = {node for nodes in waits.values() for node in nodes}
  if held := sorted(n for n in wanted if not waits.get(n)):  # Others may not have answered.
    lines.append(f"waited for, and waiting for no node: {show(held)}")
  return lines
