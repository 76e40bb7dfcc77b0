"""Measures by how much steps are longer while a run is watched.

python -m tests.watch_cost [--pairs=30] [--window=10] [--config=paced:1x2]

A run is divided into windows of `window` steps, which alternate: in one the
page is read and the metrics for Prometheus are fetched every second, in the
next neither. Loggers
csv and tensorboard run throughout. Prints the median over pairs of windows of
the ratio of their median steps, with its 95 % interval, by resampling the
pairs. The first step of a window does not count.
"""

import argparse
import contextlib
import json
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import urllib.parse
import urllib.request

from bamboo_jax.base import ports
from tests import page_cost

_SKIPPED = 12  # Steps beside which nodes load programs.
_RESAMPLES = 10_000


class Watch:
  """Reads the page of a run, and metrics of its first two nodes."""

  def __init__(self, address, metrics_port):
    url = urllib.parse.urlsplit(address)
    self._stop = threading.Event()
    self.reader = page_cost.Reader(url.port, url.fragment.removeprefix("token="))
    self._thread = threading.Thread(target=self._fetch, args=(metrics_port,))
    self._thread.start()
    self.num_fetched = 0

  def close(self):
    self._stop.set()
    self._thread.join()
    self.reader.close()

  def _fetch(self, port):
    while not self._stop.wait(1.0):
      for number in range(port, port + 2):
        with contextlib.suppress(OSError):  # The run may have ended.
          url = f"http://127.0.0.1:{number}/metrics"
          self.num_fetched += len(urllib.request.urlopen(url).read())


def is_watched(step, window):
  """Whether the run is watched in a step: off, on, on, off, off, on, ..."""
  return (step - _SKIPPED) // window % 4 in (1, 2)


def run(workdir, given):
  """Runs a cluster; returns the duration of each step in ms."""
  port = ports.free_port()
  num_steps = _SKIPPED + 2 * given.pairs * given.window
  process = subprocess.Popen(
      [sys.executable, "-m", "bamboo_jax.launch.cluster", "--page"]
      + [f"--config={given.config}", f"--config.num_steps={num_steps}"]
      + ["--config.metrics.logger=csv,tensorboard", f"--workdir={workdir}"]
      + ["--config.metrics.plots=False", f"--metrics_port={port}"],
      stdout=subprocess.PIPE,
      text=True,
  )
  address, watch, num_bytes = "", None, 0
  for line in process.stdout:
    if line.startswith("page: "):
      address = line.removeprefix("page: ").strip()
    if not line.startswith("step="):
      continue
    wanted = is_watched(int(line[5:].split()[0]) + 1, given.window)
    if wanted and watch is None:
      watch = Watch(address, port)
    elif watch is not None and not wanted:
      watch.close()
      num_bytes += watch.reader.num_bytes + watch.num_fetched
      watch = None
  if watch is not None:
    watch.close()
  assert process.wait() == 0 and num_bytes > 1000, "Nothing was read."
  lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
  return {x["step"]: x["step_ms"] for x in lines if "step_ms" in x}


def main():
  """Runs, and prints."""
  parser = argparse.ArgumentParser()
  parser.add_argument("--pairs", type=int, default=30)
  parser.add_argument("--window", type=int, default=10)
  parser.add_argument("--config", default="paced:1x2")
  given = parser.parse_args()
  with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
    step_ms = run(pathlib.Path(name), given)
  medians = []  # By window: whether it was watched, and its median step.
  numbers = range(_SKIPPED, _SKIPPED + 2 * given.pairs * given.window)
  for begin in numbers[:: given.window]:
    own = [step_ms[n] for n in range(begin + 1, begin + given.window)]
    watched = is_watched(begin, given.window)
    medians.append((watched, statistics.median(own)))
  ratios = []
  for pair in map(dict, zip(medians[::2], medians[1::2], strict=True)):
    ratios.append(pair[True] / pair[False])
  rng = random.Random(0)
  found = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(_RESAMPLES))
  low, high = found[_RESAMPLES // 40], found[-_RESAMPLES // 40]
  plain = statistics.median(ms for watched, ms in medians if not watched)
  print(
      f"plain_ms={plain:.1f} ratio={statistics.median(ratios):.4f} "
      f"low={low:.4f} high={high:.4f} pairs={len(ratios)}"
  )


if __name__ == "__main__":
  main()
