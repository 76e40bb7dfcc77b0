"""The life of a run on this machine, in one cluster of 2 x 2 nodes and a spare.

  train:     start, status, watch, stacks, a stranger, a kill, a notice, a join that fails and one
             that does not, an interrupt
  resume:    a trace removes a node and adds one; then the run ends as one without failures, to
             the bit

Each phase waits for what users see of it. A minute of two cores, as ten workers start; what is
in no phase is in tables of pure functions (`tests/local_cluster`), and other layouts, executors
and rungs are in `tests/training/worker_test.py`.
"""

import collections
import itertools
import json
import os
import re
import signal
import urllib.error
import urllib.request

from bamboo_jax.checkpoint import manifest
from bamboo_jax.metrics import jsonl
from tests import strangers
from tests.launch import commands

_NUM_NODES = 5
# What a stranger gets, and from how many; the rows are those of docs/guides/deploy.md.
_LISTENERS = {"agent": ("closed", _NUM_NODES), "worker: transport": ("closed", _NUM_NODES)}
# The only node of its zone goes, which has a place; another one comes.
_TRACE = """0,add,a/1
0,add,a/2
0,add,b/1
0,add,b/2
0,add,c/1
10,remove,c/1
20,add,d/1
600000,remove,b/1
"""


class ClusterTest(commands.CommandCase):

  CHANGES = {
      "num_steps": 120,
      "model.options.lora_rank": 2,  # So units have nothing to sum.
      "redundancy.refresh": "state",
      "redundancy.spares": 1,
      "pipeline.num_pipelines": 2,
      "pipeline.num_stages": 2,
      "pipeline.num_microbatches": 4,
      "pipeline.num_shares": 4,
      "checkpoint.every_steps": 120,
      "evaluate.every_steps": 60,
      "evaluate.num_microbatches": 1,
  }
  QUEUED_BYTES = 1 << 12  # So that nodes die while others wait to send.
  HELD_FROM = 4
  HELD_SECS = 5.0

  def test_a_run_lives_through_all_that_happens_to_it(self):
    self.workdir = f"--workdir={self.folder}/run"
    self.run_ = self.listen(self.start("cluster", "--page", "--zones=a,b"))
    with self.phase("start"):
      self.hear("step=1 ")
      (self.address,) = (l.removeprefix("page: ") for l in self.said if l.startswith("page: "))
      self.assertRegex(self.address, r"^http://127.0.0.1:\d+/#token=[0-9a-f]{32}$")
    with self.phase("status"):
      self.check_status()
    with self.phase("watch"):
      self.check_watch()
    with self.phase("stacks"):
      self.check_stacks()
    if os.geteuid() == 0:  # Only root can become another user.
      with self.phase("stranger"):
        self.check_stranger()
    with self.phase("kill"):
      self.check_kill()
    with self.phase("notice"):
      self.act("notice", "n3")
      self.wait_for(lambda: self.role("n3") == "gone", "end of n3 on the page")
    with self.phase("join"):
      self.check_join()
    with self.phase("interrupt"):
      last = self.check_interrupt()
    with self.phase("resume"):
      (self.folder / "trace.csv").write_text(_TRACE)
      trace = (f"--trace={self.folder}/trace.csv", "--time_scale=0.1")
      self.run_ = self.listen(self.start("cluster", *trace))
      whole = self.start("train", workdir="whole")
      self.hear(f"step={last + 1} ")
      self.hear("trace at_secs=0.1 remove=n4 node=c/1")
      self.hear("Node n4: its agent was killed by SIGKILL. ")  # n5 may count already.
      self.hear("trace at_secs=0.2 add=n5 node=d/1")
    with self.phase("end"):
      self.release()
      self.assertEqual(self.run_.wait(300), 0, msg=self.said[-15:])
      self.finish(whole)
      self.check_end()

  def ask(self, path, data=None):
    """Returns the answer of the page."""
    base, token = self.address.split("#token=")
    request = urllib.request.Request(base + path, data, {"X-Token": token})
    with urllib.request.urlopen(request, timeout=100) as answer:
      return answer.read()

  def read_value(self):
    """Returns the value that the page shows."""
    return json.loads(self.ask("value"))

  def role(self, name):
    return {node["name"]: node["role"] for node in self.read_value()["nodes"]}.get(name)

  def act(self, kind, node):
    """Presses a button of the page."""
    self.ask("act", json.dumps({"kind": kind, "node": node}).encode())

  def find(self, *texts):
    """Returns the process of the run that names these; waits for it."""
    texts = (str(self.folder / "run"), *texts)

    def find():
      found = set.intersection(*({*commands.processes_that_name(text)} for text in texts))
      return found if len(found) == 1 else None

    return self.wait_for(find, f"process of {texts}").pop()

  def check_status(self):
    """It prints what the page shows."""
    told = commands.fork("-m", "launch.status", self.workdir, "--json")
    self.assertEqual(told.returncode, 0, msg=told.stderr)
    shown, printed = self.read_value(), json.loads(told.stdout)
    self.assertEqual(printed.keys(), shown.keys())
    names = [node["name"] for node in printed["nodes"] if node["role"] != "gone"]
    self.assertEqual(names, [f"n{i}" for i in range(_NUM_NODES)])
    self.assertEqual((printed["actions"], "kill" in shown["actions"]), ([], True))
    port = re.search(r":(\d+)/", self.address)[1]
    told = commands.fork("-m", "launch.status", self.workdir, f"--page_port={port}")
    self.assertEqual(told.returncode, 2)
    self.assertIn(f"port {port}: Address already in use", told.stderr)
    with self.assertRaisesRegex(urllib.error.HTTPError, "400"):
      self.act("kill", "n77")
    self.assertIn(f"status: bamboo status {self.workdir}", self.said)

  def check_watch(self):
    """The status is shown again and again, with steps that go on."""
    watch = self.start_module("launch.status", self.workdir, "--watch")
    steps = []
    for line in itertools.islice(watch.stdout, 1000):
      if found := re.match(r"run=run view=\d+ step=(\d+) ", line):
        steps.append(int(found[1]))
      if steps and steps[-1] > steps[0]:
        break
    self.assertGreater(steps[-1], steps[0])
    watch.send_signal(signal.SIGINT)
    watch.communicate(timeout=300)
    self.assertEqual(watch.returncode, 128 + signal.SIGINT)

  def check_stacks(self):
    """All workers answer with their stacks, and go on."""
    told = commands.fork("-m", "launch.status", self.workdir, "--stacks")
    self.assertEqual(told.returncode, 0, msg=told.stderr)
    stacks, _, waits = told.stdout.partition("\n==\n")
    for number in range(_NUM_NODES):
      self.assertRegex(stacks, rf"(?m)^== n{number}, process \d+$")
      self.assertRegex(waits, rf"(?m)^n{number} waits for (no node|n\d)")
    self.assertIn('training/worker.py", line', stacks)

  def check_stranger(self):
    """Another user calls all sockets, and holds them; no view changes, and steps go on."""
    pids = strangers.find_descendants(self.run_.pid)
    page = re.search(r":(\d+)/", self.address)[1]
    found = [one for one in strangers.find_listeners(pids) if one.name != page]
    said = {one: strangers.call(one) for one in found}
    for one in found:
      if one.kind == "tcp":
        for connection in strangers.hold(one.name, 20):
          self.addCleanup(connection.close)
    counts = collections.Counter()
    for answer, count in _LISTENERS.values():
      counts[answer] += count
    self.assertEqual(collections.Counter(said.values()), counts, msg=said)
    text = (commands.ROOT / "docs" / "guides" / "deploy.md").read_text()
    rows = [line.split(" | ")[0].removeprefix("| ") for line in text.splitlines()]
    self.assertContainsSubset(_LISTENERS, rows)
    step = self.read_value()["head"]["step"]
    self.wait_for(lambda: self.read_value()["head"]["step"] > step, "step after it")
    self.assertEqual(strangers.find_descendants(self.run_.pid), pids)
    self.assertLen([*(self.folder / "run/records/views").iterdir()], 1)

  def check_kill(self):
    """The worker of n1 is killed by a command; its shadow takes over."""
    kill = ("-m", "launch.kill", self.workdir)
    self.assertIn("error: Unknown node 'n7'; did you mean", commands.fork(*kill, "n7").stderr)
    pid = self.find("launch.worker --name=n1 --workdir=")
    self.assertEqual(commands.fork(*kill, "n1").stdout, f"n1: worker {pid} was killed\n")
    logs = self.folder / "run" / "logs"
    self.assertRegex(
        self.hear("Node n1: "),
        r"^Node n1: its worker was killed by SIGKILL.* 4 of 5 nodes are left; agent: pid \d+, "
        rf"log {logs}/n1\.agent\.log; worker: log {logs}/n1\.log",
    )
    self.match(r"step \d+: n1 \(stage \d/\d\) died; (its shadow n\d took over|reroute: )")
    self.assertEqual(self.role("n1"), "gone")

  def check_join(self):
    """The agent that joins is killed; then another one joins."""
    self.act("join", "")
    self.hear("n5 starts, to join")
    os.kill(self.find("launch.agent\0", "--name=n5\0"), signal.SIGKILL)
    self.hear("n5 could not join; another one starts in 1 s")
    self.wait_for(lambda: self.role("n6") not in (None, "gone"), "n6 on the page")

  def check_interrupt(self):
    """The step is saved, and no process is left; returns the step."""
    self.run_.send_signal(signal.SIGTERM)
    self.assertEqual(self.run_.wait(300), 143, msg=self.said[-15:])
    last = max(one.step for one in manifest.find(self.folder / "run" / "checkpoints"))
    self.assertEqual(last, max(line["step"] for line in self.read_log("run")))
    self.assertIn(f"goes on from step {last}, which is saved", self.said[-1])
    self.assertEqual(commands.processes_that_name(str(self.folder)), [])
    return last

  def read_log(self, name):
    return jsonl.read_lines(self.folder / name / "metrics.jsonl")

  def check_end(self):
    self.assertLen([*(self.folder / "run/records/done").iterdir()], 1)  # Not of the first run.
    found, want = self.summary("run"), self.summary("whole")
    for key in ("state_sha256", "samples_seen", "steps"):
      self.assertEqual(found[key], want[key], msg=key)
    both = [self.read_log(name) for name in ("run", "whole")]
    for event in (None, "eval"):
      losses = [jsonl.column(lines, "loss", event=event) for lines in both]
      self.assertEqual(*losses, msg=event)
    recovery = found["recoveries"][-1]  # Of the trace, which knows when it killed.
    self.assertEqual(recovery["names"], ["n4"])
    self.match(
        rf"step {recovery['step']}: n4 .* died; .*\(noticed after \d.* s, agreed in \d\.\d\d s, "
        r".*pause \d+\.\d\d s\)"
    )
    self.assertGreater(recovery["detect_secs"], 0.0)
    self.assertGreater(recovery["kill_to_step_end_secs"], 0.0)
    self.assertBetween(recovery["silence_to_view_secs"], recovery["detect_secs"] - 0.2, 10.0)
    self.assertEqual(found["redundancy"]["mode"], "eager")
    # One machine has one folder of programs, for all runs.
    self.assertFalse((self.folder / "run" / "programs").exists())
    self.assertEqual(commands.processes_that_name(str(self.folder)), [])
