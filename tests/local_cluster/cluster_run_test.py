"""What a run on this machine shows and starts, at which time; agents are fakes."""

import contextlib
import functools
import socket
import types
from unittest import mock

from bamboo_jax import base, config as config_lib
from bamboo_jax.cli import flagset
from bamboo_jax.faults import faults as faults_lib
from bamboo_jax.launch import cluster
from bamboo_jax.local_cluster import cluster_run
from bamboo_jax.metrics import jsonl
from bamboo_jax.traces import readers, scale
from bamboo_jax.training.setup import accept
from tests import folders, tiny

_TRACE = """
0,add,a/1
0,add,b/1
1000,notice,a/1
2000,remove,a/1
2000,add,a/2
3000,add,a/1
4000,remove,a/2
"""


class FakeNodes:
  """Stands for both the processes and the strikes; a test sets what they say.

  Attributes:
    error: Raised by the start of an agent.
    arguments: Of the last agent that was started.
    events: Nodes that were started, killed or given notice.
    num_joins: How many nodes shall join.
    joined, failed: Nodes that have joined, and whose agents have failed.
    said: What the next call of `tend` returns.
  """

  mistake, error, num_failed, num_running = "", None, 0, 2
  arguments, num_joins, has_next = (), 0, True

  def __init__(self):
    self.events, self.joined, self.failed, self.said = [], set(), set(), {}
    self.kills, self.happened, self.has_failed = {}, set(), self.failed.__contains__
    self.find_number = lambda name: 7 if name in self.joined else None
    self.read = lambda: None
    note = lambda *what: self.events.append(" ".join(what))
    self.stop = functools.partial(note, "stop")
    self.kill_node, self.give_notice = (functools.partial(note, w) for w in ("remove", "notice"))

  def start_agent(self, name, zone, *, arguments, **unused):
    if self.error is not None:
      raise self.error
    self.arguments = arguments
    self.events.append(f"add {name} {zone}")

  def take_joins(self):
    taken, self.num_joins = self.num_joins, 0
    return taken

  @property
  def dead(self):
    return self.kills

  def tend(self):
    taken, self.said = self.said, {}
    return taken

  def call_next(self):
    self.events.append("next")
    return self.has_next


class RunTest(folders.FolderCase):

  def setUp(self):
    super().setUp()
    self.free, self.num_starts = 1 << 20, 0
    usage = lambda path: types.SimpleNamespace(free=self.free)
    self.enterContext(mock.patch("shutil.disk_usage", usage))
    self.path = self.folder / "metrics.jsonl"
    self.writer = self.enterContext(contextlib.closing(jsonl.MetricsWriter(self.path)))

  def make_run(self, **changes):
    """Returns a run, with `self.nodes`; `take` returns what it shows."""
    self.nodes, self.progress = FakeNodes(), mock.Mock()
    given = dict(arguments=[], first_zones=["a", "b"], zones=["a", "b"])
    given |= dict(config=config_lib.Config(), place=str(self.folder))
    with (
        mock.patch.object(cluster_run.machine, "LocalCluster", lambda *_: self.nodes),
        mock.patch.object(cluster_run.strikes_lib, "Strikes", lambda *_: self.nodes),
        mock.patch.object(cluster_run.progress_lib, "ProgressLine", lambda **_: self.progress),
    ):
      return cluster_run.ClusterRun(workdir=self.folder, **given | changes)

  def start_run(self, **changes):
    """Returns a run that has done a step at 0 s."""
    one = self.make_run(**changes)
    self.write_start(0)
    self.writer.write_step(1, {"step_ms": 500.0})
    self.assertTrue(one.tend(0.0))
    self.take()
    return one

  def write_start(self, step):
    self.num_starts += 1
    self.writer.write_step(step, {"event": "start", "at": self.num_starts})

  def take(self):
    """Returns the steps and texts that were shown since the last call."""
    shown = [call.args[0] for call in self.progress.mock_calls if call.args]
    self.progress.reset_mock()
    return shown

  def test_events_of_a_trace_in_order_of_time(self):
    trace = readers.parse_trace(_TRACE, source="t.csv")
    planned = scale.plan_replay(scale.scale(trace, num_nodes=None, time_scale=0.1))
    one, done = self.start_run(replay=planned), {}
    for zone, node in zip("ab", planned.first, strict=True):
      one.start_node(zone, node)
    self.nodes.events.clear()
    for now in (0.09, 0.1, 0.2, 0.25, 0.31, 1.0):
      one.tend(now)
      done[now] = [*self.nodes.events]
      self.nodes.events.clear()
    events = {0.1: ["notice n0"], 0.2: ["remove n0", "add n2 a"], 0.31: ["add n3 a"]}
    events[1.0] = ["remove n2"]
    self.assertEqual({now: events for now, events in done.items() if events}, events)

  def test_each_line_is_shown_once(self):
    self.write_start(0)
    self.writer.write_step(1, {})
    one = self.make_run()  # What is there is of the run before.

    def look():
      one.tend(0.0)
      return self.take()

    self.assertEqual(look(), [])
    self.write_start(1)
    self.writer.write_step(2, {})
    self.assertEqual(look(), ["resumed_from_step=1", 2])
    self.assertEqual(look(), [])
    self.writer.write_step(1, {"event": "rollback"})
    self.writer.write_step(2, {"loss": 1, "learning_rate": 0.1, "grad_norm": 2.0})
    self.writer.write_step(20, {"event": "eval", "loss": 3.5})
    self.assertEqual(look(), [2, "eval_step=20 eval_loss=3.5000"])
    self.write_start(0)
    self.writer.write_step(1, {})
    self.assertEqual(look(), ["all nodes died; step 1 is next", 1])

  def test_a_step_that_lasts_long(self):
    full = r"0.5 s\); the disk of .* is full: no log can be written, and a death or a join stops"
    for now, free, reason, want in (
        (1.9, 1 << 20, "", ""),
        (3.1, 1 << 20, "", r"no step for 3.1 s \(median 0.5 s\); no reason is known yet"),
        (3.1, 0, "", full),
        (3.1, 1 << 20, "n2 comes", ""),  # The log has it.
    ):
      one = self.start_run()
      for step in range(2, 12):
        self.writer.write_step(step, {"step_ms": 500.0})
      one.tend(0.0)
      self.free = free
      if reason:
        self.writer.write_step(11, {"event": "pause", "reason": reason})
      self.take()
      one.tend(now)
      self.assertRegex("\n".join(self.take()), want or "^(n2 comes)?$")
      one.tend(now)
      self.assertEqual(self.take(), [])  # Once.
      self.free = 1 << 20
    one = self.make_run()
    one.tend(99.0)
    self.assertEqual(self.take(), [])  # Before the first step.

  def test_a_death_is_told_with_its_logs_and_beside_a_full_disk(self):
    one = self.start_run()
    for self.free, num_lines in ((1 << 20, 1), (0, 2)):
      self.nodes.said = {"n1": "n1 died"}
      one.tend(0.0)
      log = self.folder / "logs" / "n1.log"
      want = [f"n1 died; worker: log {log}", f"warning: {base.find_full(self.folder)}"]
      self.assertEqual(self.take(), want[:num_lines])

  def test_a_metrics_port_in_use_is_said(self):
    with socket.create_server(("127.0.0.1", 0)) as taken:
      port = taken.getsockname()[1]
      one = self.make_run(metrics_port=port)
      one.start_node()
      (said,) = self.take()
      self.assertIn(f"No metrics of n0: --metrics_port: cannot listen at 127.0.0.1:{port}: ", said)
      self.assertNotIn("metrics_port", str(self.nodes.arguments))
      one = self.make_run(metrics_port=65535)
      one.start_node()
      self.assertIn("--metrics_port=65535", self.nodes.arguments)

  def test_who_fails_before_it_has_joined_is_replaced_for_ever(self):
    one = self.start_run()
    self.nodes.num_joins = 2
    started = lambda: [event.split()[1] for event in self.nodes.events]
    for now, comes, ends, want in (
        (0.0, "", "", ["n0", "n1"]),
        (1.0, "n0", "n0", []),  # It has ended later.
        (2.0, "", "n1", []),
        (2.9, "", "", []),
        (3.0, "", "", ["n2"]),
        (4.0, "", "n2", []),
        (6.0, "", "", ["n3"]),
        (6.0, "", "n3", []),
        (10.0, "", "", ["n4"]),
        (11.0, "n4", "", []),
        (999.0, "", "", []),
    ):
      self.nodes.joined.add(comes)
      self.nodes.failed.add(ends)
      one.tend(now)
      self.assertEqual(started(), want, now)
      self.nodes.events.clear()
    texts = [text for text in self.take() if "another" in str(text)]
    names = (("n1", 1), ("n2", 2), ("n3", 4))
    want = [f"{n} could not join; another one starts in {secs} s" for n, secs in names]
    self.assertEqual(texts, want)

  def test_a_node_that_cannot_be_started_is_tried_again(self):
    text = "0,add,a/0\n9,add,a/1\n30000,remove,a/1"
    planned = scale.plan_replay(readers.parse_trace(text, source="t.csv"))
    for replay, want in ((None, ["add n3 b"]), (planned, ["add n3 a", "remove n3"])):
      one = self.start_run(replay=replay)
      self.nodes.error = OSError("Resource temporarily unavailable")
      self.nodes.num_joins = int(not replay)
      for now in (0.0, 0.01, 1.5, 3.5):
        one.tend(now)
      why = "no node can start: Resource temporarily unavailable; another one"
      texts = [text for text in self.take() if "pause" not in str(text)]
      self.assertEqual(texts, [f"{why} starts in {secs} s" for secs in (1, 2, 4)])
      self.nodes.error = None
      one.tend(8.0)
      one.tend(40.0)
      self.assertEqual(self.nodes.events, want)

  def test_a_node_that_joins_a_lost_run_waits_for_nobody(self):
    for self.has_members in (True, False):
      one = self.start_run()  # Another node has told of a mistake; one still starts.
      self.nodes.mistake, self.nodes.num_failed = "Lost all copies of stage 1.", 2
      self.nodes.has_live_members = lambda: self.has_members
      self.assertEqual(one.tend(1.0), self.has_members)

  @mock.patch.object(cluster_run, "ClusterRun")
  @mock.patch.object(flagset, "to_argv", lambda *unused: [])  # There is no command line.
  def test_no_random_kills_of_nodes_that_stay(self, run):
    config = tiny.make_config(num_steps=9)
    for policy, want in ((None, 2), ("on_demand", 0)):
      config.recovery.policy = policy
      flags = cluster.ClusterFlags(accept.accept(config), str(self.folder / "run"), random_kills=1)
      cluster.main(flags)
      self.assertLen(run.call_args.kwargs["faults"], want)

  def test_faults_that_never_happened(self):
    text = "1,0/0,,kill\n4,0/1,,kill\n6,3/0,2,kill\n8,0/0,,kill"
    self.write_start(0)
    one = self.make_run(faults=faults_lib.parse_faults(text, source="f.csv"))
    self.nodes.happened.add(2)
    for step in (4, 6):  # It was resumed at 4, and began again at 6.
      self.write_start(step)
    self.writer.write_step(8, {})
    one.tend(0.0)
    said = "warning: --faults, line 3: 6,3/0,2,kill never happened: no live node owned 3/0 then."
    # The first step of the log is 4, as nobody owns a third pipeline then.
    self.assertEqual(one.find_missed(), [said])

  def test_faults_in_steps_of_an_earlier_run_only(self):
    """It had done more steps than were saved; or there is nothing to do."""
    faults = faults_lib.parse_faults("1,0/0,2,kill\n5,0/0,2,kill\n7,0/0,2,kill", source="f.csv")
    self.write_start(0)
    self.writer.write_step(9, {})
    one = self.make_run(faults=faults)
    one.tend(0.0)
    self.assertEqual(one.find_missed(), [])
    self.write_start(4)
    self.writer.write_step(6, {})  # Then it was told to save and end.
    one.tend(1.0)
    (said,) = one.find_missed()
    self.assertIn("line 2: 5,0/0,2,kill never happened", said)

  def test_a_signal_has_a_step_saved_if_there_is_one(self):
    one = self.make_run()
    self.assertFalse(one.ask_to_stop())
    one = self.start_run()
    self.assertTrue(one.ask_to_stop())
    self.assertTrue(one.tend(1.0))
    self.assertEqual(self.nodes.events, ["stop"])
    with self.assertRaisesRegex(ValueError, "No step ended in time"):
      one.tend(100.0)
    self.nodes.num_running = 0
    self.assertFalse(one.tend(2.0))
    one = self.start_run()
    (self.folder / "summary.json").write_text("{}")
    self.assertFalse(one.ask_to_stop())

  def test_who_comes_when_nobody_is_left(self):
    for num_failed, is_over, want in ((1, False, ["next"]), (2, False, []), (1, True, [])):
      one = self.start_run()
      self.nodes.num_running, self.nodes.num_failed = 0, num_failed
      self.nodes.kills = {1: 0.0}  # The other one has ended by itself.
      if is_over:
        (self.folder / "summary.json").write_text("{}")
      self.assertEqual(one.tend(1.0), bool(want))
      self.assertEqual(self.nodes.events, want)

  def test_the_end(self):
    one = self.start_run()
    (self.folder / "summary.json").write_text("{}")
    self.nodes.num_joins = 1  # Too late.
    self.assertEqual([one.tend(secs) for secs in (1.0, 6.0, 6.1)], [True, True, False])
    self.assertEqual(self.nodes.events, [])
    one = self.make_run()
    self.nodes.num_failed, self.nodes.mistake = 1, "No split fits."
    with self.assertRaisesRegex(base.EndedError, "No split fits."):
      one.tend(0.0)

  def test_the_end_is_told_though_the_bucket_is_away(self):
    one = self.make_run(place="gs://b/run")
    end = '{"steps": 3, "recoveries": [], "redundancy": null, "state_sha256": "5a"}'
    (self.folder / "summary.json").write_text(end)
    fake = self.enterContext(mock.patch.object(cluster_run.mirror, "Mirror"))
    fake.return_value.push.side_effect = OSError("gs://b/run: no answer")
    with self.assertRaisesRegex(base.NodeFailedError, "only in .*: gs://b/run: no answer"):
      one.report()
    self.assertEqual(self.take(), ["state_sha256=5a"])
