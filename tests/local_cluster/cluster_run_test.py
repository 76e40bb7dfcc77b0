"""What a run on this machine shows and starts, at which time; agents are fakes."""

import contextlib
import functools
import socket
import types
from unittest import mock

from absl.testing import parameterized

from bamboo_jax import base, config as config_lib
from bamboo_jax.cli import flagset
from bamboo_jax.faults import faults as faults_lib
from bamboo_jax.launch import cluster
from bamboo_jax.local_cluster import cluster_run
from bamboo_jax.metrics import jsonl
from bamboo_jax.traces import readers, scale
from bamboo_jax.training.setup import accept
from tests import folders, tables, tiny

# The courses of runs of two nodes: the events of a trace, then steps. "at" is the time in seconds,
# "does" is all that was started or ended since the step before; others are in `test_course`.
_COURSES = """
0,add,a/1 0,add,b/1 1000,notice,a/1 2000,remove,a/1 2000,add,a/2 3000,add,a/1 4000,remove,a/2
  at 0.9 | does | at 1 | does notice n0 | at 2 | does remove n0, add n2 a | at 2.5 | does |
  at 3.1 | does add n3 a | at 10 | does remove n2
0,add,a/1 0,add,b/1 3600000,remove,a/1
  call 2 | at 0 | does add n2 a, add n3 b | joined n2 | failed n2 | at 1 | does | failed n3 |
  shows n2 starts, to join / n3 starts, to join |
  at 2 | shows n3 could not join; another one starts in 1 s | at 2.9 | does | at 3 |
  does add n4 a | shows n4 starts, to join | failed n4 |
  at 4 | shows n4 could not join; another one starts in 2 s | at 6 | does add n5 b |
  shows n5 starts, to join | failed n5 |
  at 6 | shows n5 could not join; another one starts in 4 s | at 9.9 | does | at 10 |
  does add n6 a | joined n6 | at 11 | at 999 | does
0,add,a/1 0,add,b/1 3600000,remove,a/1
  none starts | call 1 | at 0 |
  shows no node can start: Resource temporarily unavailable; another one starts in 1 s |
  at 0.01 | shows | at 1.5 |
  shows no node can start: Resource temporarily unavailable; another one starts in 2 s | at 3.5 |
  shows no node can start: Resource temporarily unavailable; another one starts in 4 s |
  all start | at 8 | does add n5 b
0,add,a/1 0,add,b/1 9,add,a/2 30000,remove,a/2
  none starts | at 0 | does | at 0.01 |
  shows no node can start: Resource temporarily unavailable; another one starts in 1 s |
  all start | at 8 | does add n3 a | at 40 | does remove n3
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

  @parameterized.parameters(*tables.read(_COURSES.replace("|\n", "|")))
  def test_course(self, trace, course):
    trace = readers.parse_trace(trace.replace(" ", "\n"), source="t.csv")
    planned = scale.plan_replay(trace)
    one = self.start_run(replay=planned)
    for zone, node in zip("ab", planned.first, strict=True):
      one.start_node(zone, node)
    self.nodes.events.clear()
    for step in course.split(" | "):
      with self.subTest(step=step):
        what, _, value = step.strip().partition(" ")
        match what:
          case "at":
            one.tend(float(value))
          case "call":
            self.nodes.num_joins = int(value)
          case "joined" | "failed":
            getattr(self.nodes, what).add(value)
          case "none" | "all":
            full = OSError("Resource temporarily unavailable")
            self.nodes.error = full if what == "none" else None
          case "does":
            self.assertEqual(", ".join(self.nodes.events), value)
            self.nodes.events.clear()
          case "shows":
            shown = [text for text in self.take() if not text.startswith(("pause", "trace"))]
            self.assertEqual(" / ".join(shown), value)

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

  def test_a_folder_that_is_removed_is_named(self):
    one = self.start_run()
    self.writer.write_step(2, {"step_ms": 500.0})
    one.tend(0.0)
    self.path.unlink()
    self.take()
    self.nodes.said = {"n1": "n1 died"}
    one.tend(9.0)
    said = rf"the files of the run in {self.folder} are gone: mount the folder again, or if it"
    self.assertRegex("\n".join(self.take()), rf"n1 died.*\nwarning: {said}.*\npause: no .*; {said}")

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
