"""Records what slow nodes are found by, from clusters that run on this machine.

python -m bamboo_jax.benchmarks.record_slowness --name=NAME --out=FILE [--steps=38]
    [--slow=3] [--part=0.5] [--loops=0] [--config=paced:2x4]

Trains on a cluster, and appends a row for each step to FILE, but for the first
three: the name of the trace, then busy, waited and starved milliseconds of each
node, as members vote. After 22 of these rows the worker of node `slow` is
suspended for a `part` of its time, in periods of 100 ms; none if it is -1.
`loops` processes beside it are always busy.
"""

import argparse
from collections.abc import Iterator
import contextlib
import csv
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

from bamboo_jax.local_cluster import inquiry
from bamboo_jax.recovery import slowness

_NUM_BEFORE = 22
_PERIOD_SECS = 0.1
# Runs in each worker, before it trains, as a module of `config.plugins`.
_PLUGIN = """
import json, pathlib
from bamboo_jax.training.record import slow_nodes

_hear = slow_nodes.SlowNodes.hear

def hear(self, said):
  said = [*said]
  if self._state.is_writer:
    row = {n: [s.work, s.busy_secs, s.waited_secs, s.starved_secs]
           for nodes in said for n, s in nodes.items()}
    with open(pathlib.Path(FOLDER, "heard.jsonl"), "a") as file:
      file.write(json.dumps(row) + "\\n")
  _hear(self, said)

slow_nodes.SlowNodes.hear = hear
"""


@contextlib.contextmanager
def _started(command: list[str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
  process = subprocess.Popen(command, **options)
  try:
    yield process
  finally:
    process.terminate()
    process.wait()


def _suspend_often(pid: int, part: float, stop: threading.Event) -> None:
  """Lets a process run for `1 - part` of its time, until it has ended."""
  with contextlib.suppress(ProcessLookupError):
    while not stop.is_set():
      os.kill(pid, signal.SIGSTOP)
      stop.wait(part * _PERIOD_SECS)
      os.kill(pid, signal.SIGCONT)
      stop.wait((1 - part) * _PERIOD_SECS)


def record(folder: pathlib.Path, given: argparse.Namespace) -> list[dict[str, list[Any]]]:
  """Trains; returns the times of each node in each step, as members sent them.

  A step is a dict by node: the fields of `NodeStep`.
  """
  (folder / "heard.py").write_text(_PLUGIN.replace("FOLDER", repr(str(folder))))
  path, workdir = folder / "heard.jsonl", folder / "run"
  path.touch()
  command = [sys.executable, "-m", "bamboo_jax.launch.cluster"]
  command += [f"--config={given.config}", f"--workdir={workdir}"]
  command += ["--config.plugins=('heard',)", "--config.metrics.plots=False"]
  command += [f"--config.num_steps={given.steps + slowness.NUM_SKIPPED}"]
  environ = {**os.environ, "PYTHONPATH": f"{folder}:{os.getcwd()}"}
  stop, slows = threading.Event(), None
  with _started(command, env=environ, stdout=subprocess.DEVNULL) as run:
    while run.poll() is None:
      num = path.read_text().count("\n") - slowness.NUM_SKIPPED
      if slows is None and num >= _NUM_BEFORE and given.slow >= 0:
        pid = inquiry.find_workers(workdir / "logs")[f"n{given.slow}"]
        args = (pid, given.part, stop)
        slows = threading.Thread(target=_suspend_often, args=args, daemon=True)
        slows.start()
      time.sleep(0.02)
    stop.set()
    if run.returncode:
      raise SystemExit(f"The cluster ended with {run.returncode}.")
  return [*map(json.loads, path.read_text().splitlines())]


def main() -> None:
  """Records one trace."""
  parser = argparse.ArgumentParser()
  parser.add_argument("--name", required=True)
  parser.add_argument("--out", required=True)
  parser.add_argument("--config", default="paced:2x4")
  parser.add_argument("--steps", type=int, default=38)
  parser.add_argument("--slow", type=int, default=3)
  parser.add_argument("--part", type=float, default=0.5)
  parser.add_argument("--loops", type=int, default=0)
  given = parser.parse_args()
  loop = [sys.executable, "-c", "while True: pass"]
  with contextlib.ExitStack() as stack:
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    for _ in range(given.loops):
      stack.enter_context(_started(loop))
    heard = record(pathlib.Path(folder), given)
  with open(given.out, "a", newline="") as file:
    for row in heard[slowness.NUM_SKIPPED :]:
      nodes = [row[node] for node in sorted(row, key=int)]
      cells = ["/".join(f"{1e3 * secs:.0f}" for secs in one[1:]) for one in nodes]
      csv.writer(file, lineterminator="\n").writerow([given.name, *cells])


if __name__ == "__main__":
  main()
