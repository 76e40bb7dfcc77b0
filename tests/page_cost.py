"""Measures what the page of a large run costs: a fake one, no node computes.

python -m tests.page_cost [--nodes=64] [--rate=10] [--steps=3000] [--secs=30]
    [--browser]

A thread writes the files of a run of `nodes` nodes: the log, the rows of all
nodes, and the status. The run has done `steps` steps, and goes on at
`rate` steps a second. `bamboo status --page` serves the page to one reader of
its events. Prints the processor time of that
server as a share of one core, and then the times of other requests. With
--browser a page in Chromium is the reader, and the longest tasks of its main
thread are printed instead, in the first seconds and later.
"""

import argparse
import contextlib
import dataclasses
import http.client
import json
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse

import psutil

from bamboo_jax.base import json as json_lib
from bamboo_jax.cluster import judge, records as records_lib, views
from bamboo_jax.configs import quickstart
from bamboo_jax.metrics import jsonl, rows as rows_lib
from bamboo_jax.net import identity as identity_lib
from bamboo_jax.recovery import layout as layout_lib
from bamboo_jax.schedule import failover
from bamboo_jax.training.record import step_traces
from tests import browser, layouts, members
from tests.recovery import durations_test
from tests.report.live import facts_test

_STAGES = 4
_MICROBATCHES = 8  # Of a pipeline.
_ROWS_SECS = 0.5  # Between two files of rows, as in a run.
_WARMUP_SECS = 3.0


class FakeRun:
  """Writes files and status of a run into a folder."""

  def __init__(self, workdir, records, *, num_nodes):
    self._workdir, self._records = workdir, records
    zones = [members.member(n, "abc"[n % 3]) for n in range(num_nodes)]
    self.view = views.View(1, tuple(zones), "all have come", ())
    count = num_nodes // _STAGES
    own = [range(_STAGES * p, _STAGES * (p + 1)) for p in range(count)]
    shadows = lambda nodes: {(s + 1) % _STAGES: n for s, n in enumerate(nodes)}
    roles = [failover.Roles(tuple(nodes), shadows(nodes)) for nodes in own]
    rules = layouts.make_rules(_STAGES, count, per_share=_MICROBATCHES)
    layout = rules.start(layouts.make_pipelines(roles))
    planned = layout_lib.StepPlans(rules.rows).whole(layout)
    self._slots = rows_lib.pack(step_traces.planned_slots(planned))
    self._status = {
        "layout": json_lib.to_plain(layout) | {"members": [m.number for m in zones]},
        "ladder": dataclasses.asdict(rules.ladder),
        "recoveries": [durations_test.RECOVERY | {"view": n} for n in range(5)],
    }
    config = json.loads(quickstart.get_config().to_json_best_effort())
    config["cost"]["instance"] = "p3.2xlarge"
    (workdir / "config.json").write_text(json.dumps(config))
    records.make("run/0", judge.describe_run({"config": config}))
    judge.run(judge.make_view(views.EMPTY, self.view), records)
    (workdir / "rows").mkdir()
    self._log = jsonl.MetricsWriter(workdir / "metrics.jsonl")
    self._num_nodes = num_nodes
    self.num_steps = 0

  def step(self, *, is_told=True):
    """Writes the line of a step, and its status."""
    self.num_steps += 1
    secs = 0.1 * self.num_steps
    account = facts_test.account(secs, self._num_nodes, useful=secs)
    metrics = {"loss": 3.0 + 1.0 / self.num_steps, "tokens_per_sec": 1e5}
    values = {**metrics, "step_ms": 100.0, "account": account}
    self._log.write_step(self.num_steps, values)
    told = {"steps": self.num_steps, "metrics": metrics}
    if is_told:
      self._records.mark("status/0", {"at_secs": time.time(), **self._status, **told})

  def write_rows(self):
    """Writes the last four steps of each node."""
    now = time.time()
    one = lambda step, slots: rows_lib.StepRows(step, now, now, slots)
    folder = self._workdir / "rows"
    rows_lib.write(folder / rows_lib.PLANNED, [one(1, self._slots)])
    for node in range(self._num_nodes):
      slots = [row for row in self._slots if row[0] == f"node {node}"]
      steps = range(max(1, self.num_steps - 3), self.num_steps + 1)
      rows_lib.write(folder / f"n{node}.json", [one(s, slots) for s in steps])

  def run(self, rate, stop):
    """Runs `rate` steps a second, if it can, until `stop` is set."""
    begin = now = time.monotonic()
    rows_secs, first = 0.0, self.num_steps
    while not stop.is_set():
      self.step()
      if now >= rows_secs + _ROWS_SECS:
        self.write_rows()
        rows_secs = now
      next_secs = begin + (self.num_steps - first) / rate
      stop.wait(max(0.0, next_secs - time.monotonic()))
      now = time.monotonic()


class Reader:
  """Reads the events of a page, as a browser does."""

  def __init__(self, port, token):
    self.num_bytes = 0
    self._connection = http.client.HTTPConnection("127.0.0.1", port)
    self._connection.request("GET", f"/events?token={token}")
    self._answer = self._connection.getresponse()
    threading.Thread(target=self._run, daemon=True).start()

  def close(self):
    """Goes away, as a browser that is closed."""
    self._connection.sock.shutdown(socket.SHUT_RDWR)

  def _run(self):
    with contextlib.suppress(OSError):  # This end, or the other, has closed.
      while line := self._answer.readline():
        self.num_bytes += len(line)


def time_requests(port, token, secs):
  """Returns the times of requests in ms, by path.

  Of the events, until the first has come, which has the whole value.
  """
  found = {"/": [], "/events": []}
  end = time.monotonic() + secs
  while time.monotonic() < end:
    for path, times_ms in found.items():
      begin = time.perf_counter()
      connection = http.client.HTTPConnection("127.0.0.1", port)
      connection.request("GET", path, headers={"X-Token": token})
      content = connection.getresponse().readline()
      times_ms.append(1e3 * (time.perf_counter() - begin))
      connection.close()
      assert content, path
    time.sleep(0.5)
  return found


_WATCH = """
window.longTasks = [];
new PerformanceObserver(list => {
  for (const entry of list.getEntries()) longTasks.push(entry.duration);
}).observe({type: "longtask"});
"""


@contextlib.contextmanager
def opened_in_browser(address):
  """Yields a function that returns lengths of tasks in Chromium, and errors.

  In milliseconds, of those above 50 since the last call.
  """
  with browser.started() as chrome:
    page, errors = browser.open_page(chrome, address, script=_WATCH)
    page.wait_for_selector("#node-n1")

    def wait(secs):
      page.wait_for_timeout(1e3 * secs)
      return page.evaluate("longTasks.splice(0)"), errors

    yield wait


def _describe(times_ms):
  cuts = statistics.quantiles(times_ms, n=20)
  return (
      f"median_ms={statistics.median(times_ms):.1f} p95_ms={cuts[-1]:.1f} "
      f"most_ms={max(times_ms):.1f} requests={len(times_ms)}"
  )


def main():
  """Measures, and prints."""
  parser = argparse.ArgumentParser()
  parser.add_argument("--nodes", type=int, default=64)
  parser.add_argument("--rate", type=float, default=10.0)
  parser.add_argument("--secs", type=float, default=30.0)
  parser.add_argument("--steps", type=int, default=3000)
  parser.add_argument("--browser", action="store_true")
  given = parser.parse_args()
  with tempfile.TemporaryDirectory() as name:
    workdir = pathlib.Path(name)
    secret = identity_lib.read_secret(identity_lib.draw_secret(workdir))
    records = records_lib.Records(workdir, identity_lib.find_entry_key(secret))
    stop = threading.Event()
    writer = server = None
    try:
      run = FakeRun(workdir, records, num_nodes=given.nodes)
      for _ in range(given.steps):
        run.step(is_told=False)
      for member in run.view.members:
        records.mark(f"nodes/{member.incarnation}", {"member": json_lib.to_plain(member)})
      writer = threading.Thread(target=run.run, args=(given.rate, stop))
      writer.start()
      server = subprocess.Popen(
          [sys.executable, "-m", "bamboo_jax.launch.status", "--page"] + [f"--workdir={workdir}"],
          stdout=subprocess.PIPE,
          text=True,
      )
      address = server.stdout.readline().removeprefix("page: ").strip()
      url = urllib.parse.urlsplit(address)
      token = url.fragment.removeprefix("token=")
      _measure(run, server.pid, address, url.port, token, given)
    finally:
      stop.set()
      if writer is not None:
        writer.join()
      if server is not None:
        server.kill()
        server.wait()


def _measure(run, pid, address, port, token, given):
  with contextlib.ExitStack() as stack:
    reader = wait = None
    if given.browser:
      wait = stack.enter_context(opened_in_browser(address))
    else:
      reader = Reader(port, token)
      wait = time.sleep
    tasks = [wait(_WARMUP_SECS)]
    process = psutil.Process(pid)
    begin, steps, used = time.monotonic(), run.num_steps, process.cpu_times()
    num_bytes = reader.num_bytes if reader else 0
    tasks.append(wait(given.secs))
    secs, now = time.monotonic() - begin, process.cpu_times()
    cpu_secs = now.user + now.system - used.user - used.system
    rate = (run.num_steps - steps) / secs
    print(
        f"nodes={given.nodes} steps_per_sec={rate:.1f}"
        f" cpu_pct={100 * cpu_secs / secs:.1f}"
        f" rss_mib={process.memory_info().rss / 2**20:.0f}"
    )
    if reader is None:
      for name, (found, errors) in zip(("first", "later"), tasks, strict=True):
        print(f"{name}_tasks_ms={sorted(map(round, found))[-5:]} {errors=}")
      return
    print(f"kib_per_sec={(reader.num_bytes - num_bytes) / secs / 1024:.0f}")
    for path, found in time_requests(port, token, given.secs).items():
      print(f"{path} {_describe(found)}")


if __name__ == "__main__":
  main()
