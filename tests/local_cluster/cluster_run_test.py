"""What happens to nodes, at which time of a trace."""

import contextlib
import os
import pathlib
import socket
import tempfile
import types
from unittest import mock

from absl.testing import parameterized

from bamboo_jax import base
from bamboo_jax.faults import faults as faults_lib
from bamboo_jax.local_cluster import cluster_run as cluster_run
from bamboo_jax.metrics import jsonl
from bamboo_jax.traces import readers, replay

_TRACE = """
0,add,a/1
0,add,b/1
1000,notice,a/1
2000,remove,a/1
2000,add,a/2
3000,add,a/1
4000,remove,a/2
"""


class RunTest(parameterized.TestCase):

  def test_events_in_order_of_time(self):
    trace = readers.parse_events(_TRACE, source="trace.csv")
    player = cluster_run.TracePlayer(replay.plan_replay(trace, time_scale=10), ["n0", "n1"])
    done, num_started = {}, 2
    for now in (50.0, 50.09, 50.1, 50.2, 50.25, 50.31, 51.0):
      done[now] = []
      for event in player.take_due(now):
        if event.kind == "add":
          player.names[event.node] = f"n{num_started}"
          num_started += 1
        done[now].append(f"{event.kind} {player.names[event.node]} {event.zone}")
    self.assertEqual(
        done,
        {
            50.0: [],
            50.09: [],
            50.1: ["notice n0 a"],
            50.2: ["remove n0 a", "add n2 a"],
            50.25: [],
            50.31: ["add n3 a"],
            51.0: ["remove n2 a"],
        },
    )

  def test_each_line_is_shown_as_it_comes(self):
    folder = self.enter_context(tempfile.TemporaryDirectory())
    path = pathlib.Path(folder) / "metrics.jsonl"
    one, shown = self._shower(path), []
    one._progress.show_step.side_effect = lambda step, _: shown.append(step)
    one._progress.show_text.side_effect = shown.append

    def look():
      shown.clear()
      one._show_progress()
      return [*shown]

    self.assertEqual(look(), [])  # There is no file yet.
    with contextlib.closing(jsonl.MetricsWriter(path)) as writer:
      writer.write_event("start", step=1)
      writer.write_step(2, {})
      self.assertEqual(look(), ["resumed_from_step=1", 2])
      self.assertEqual(look(), [])
      writer.write_event("saving", step=2, values={"reason": "all leave"})
      writer.write_event("warning", step=2, values={"text": "short."})
      writer.write_event("changed", step=2, values={"text": "changed=a"})
      writer.write_event("damaged", step=2, values={"checkpoint": 9})
      texts = (
          "saving step=2: all leave",
          "warning: short.",
          "changed=a",
          "warning: the checkpoint of step 9 is damaged; training continues from step 2.",
      )
      self.assertEqual(look(), [*texts])
      writer.write_event("rollback", step=1)
      writer.write_step(2, {"learning_rate": 0.1, "grad_norm": 2.0})
      self.assertEqual(look(), [2])
    one._progress.show_step.assert_called_with(2, {"learning_rate": 0.1})

  def _shower(self, path):
    """Returns a run that shows the log at `path`."""
    one = object.__new__(cluster_run.ClusterRun)
    one._reader, one._last_step = jsonl.MetricsReader(path), 0
    one._starts, one._step_secs = [], []
    self.addCleanup(one._reader.close)
    one._director, one._progress = mock.Mock(), mock.Mock()
    return one

  def test_a_kill_leaves_a_whole_summary(self):
    folder = self.enter_context(tempfile.TemporaryDirectory())
    one = object.__new__(cluster_run.ClusterRun)
    one._summary = pathlib.Path(folder) / "summary.json"
    former = '{"steps": 3, "recoveries": [], "redundancy": null}'
    one._summary.write_text(former)
    one._former_summary, one._director = b"", mock.Mock(kills={})
    killed = mock.patch.object(os, "replace", side_effect=SystemExit)
    with killed, self.assertRaises(SystemExit):
      one.report()
    self.assertEqual(one._summary.read_text(), former)

  def test_what_is_shown_beside_steps(self):
    folder = self.enter_context(tempfile.TemporaryDirectory())
    path = pathlib.Path(folder) / "metrics.jsonl"
    one = self._shower(path)
    with contextlib.closing(jsonl.MetricsWriter(path)) as writer:
      writer.write_event("start", step=0)
      writer.write_event("pause", step=1, values={"reason": "n2 comes"})
      writer.write_event("eval", step=20, values={"loss": 3.5})
      one._show_progress()
    self.assertEqual(
        one._progress.mock_calls,
        [
            mock.call.explain("n2 comes", at_once=False),
            mock.call.show_text("eval_step=20 eval_loss=3.5000"),
        ],
    )

  @parameterized.named_parameters(
      ("usual", dict(now=101.9), None),
      ("slow", dict(now=103.1), "no step for 3.1 s (median 0.5 s)"),
      (
          "a_full_disk",
          dict(now=103.1, free=0),
          "0.5 s); the disk of /run is full: no log can be written, and a "
          "death or a join stops training until there is room",
      ),
      ("no_reason", dict(now=103.1, free=1 << 20), "; no reason is known yet"),
      ("usual_steps_are_slow", dict(now=103.1, usual=1.0), None),
      ("explained", dict(now=103.1, told=None), None),
      ("before_the_first_step", dict(now=103.1, has_stepped=False), None),
      ("over", dict(now=103.1, is_over=True), None),
  )
  def test_a_step_that_lasts_long(self, changes, said):
    given = dict(told=100.0, usual=0.5, has_stepped=True, is_over=False)
    given |= changes
    one = object.__new__(cluster_run.ClusterRun)
    one._told_secs, one._has_stepped = given["told"], given["has_stepped"]
    one._step_secs, one._progress = [given["usual"]] * 3, mock.Mock()
    one._setup = types.SimpleNamespace(workdir="/run")
    usage = types.SimpleNamespace(free=given.get("free", 1 << 20))
    self.enterContext(mock.patch("shutil.disk_usage", return_value=usage))
    over = mock.PropertyMock(return_value=given["is_over"])
    with mock.patch.object(cluster_run.ClusterRun, "_is_over", over):
      for _ in range(2):  # Once.
        one._tell_if_slow(given["now"])
    shown = [call.args[0] for call in one._progress.show_text.mock_calls]
    self.assertLen(shown, 0 if said is None else 1)
    if said is not None:
      self.assertIn(said, shown[0])

  @parameterized.parameters((1 << 20, 1), (0, 2))
  def test_a_death_beside_a_full_disk(self, free, num_lines):
    one = object.__new__(cluster_run.ClusterRun)
    one._cluster, one._progress = mock.Mock(), mock.Mock()
    one._cluster.tend.return_value, one._cluster.mistake = {"n1": "n1 died"}, ""
    one._director, one._logs = mock.Mock(pids={"n1": 7}), pathlib.Path("logs")
    one._setup = types.SimpleNamespace(workdir="/run")
    usage = types.SimpleNamespace(free=free)
    with mock.patch("shutil.disk_usage", return_value=usage):
      one._tell_of_failures()
      full = base.find_full("/run")
    lines = [call.args[0] for call in one._progress.show_text.mock_calls]
    want = ["n1 died; worker: pid 7, log logs/n1.log", f"warning: {full}"]
    self.assertEqual(lines, want[:num_lines])

  def test_a_metrics_port_in_use_is_said(self):
    with socket.socket() as taken:
      taken.bind(("127.0.0.1", 0))
      taken.listen()
      port = taken.getsockname()[1]
      for number, given, line in (
          (0, [], f"No metrics of n0 at port {port}: Address already in use."),
          (65536 - port, [], "port 65536: ports are from 0 to 65535."),
      ):
        one = object.__new__(cluster_run.ClusterRun)
        one._progress, one._cluster = mock.Mock(), mock.Mock()
        one._director, one._num_started = mock.Mock(address="d"), number
        one._setup = mock.Mock(metrics_port=port, arguments=[], first_zones=["a"], zones=["a"])
        one._setup.gpus = ()
        one._note = mock.Mock()
        one._start_node()
        arguments = one._cluster.start_agent.call_args.kwargs["arguments"]
        self.assertEqual([a for a in arguments if "metrics_port" in a], given)
        self.assertIn(line, one._progress.show_text.call_args.args[0])

  def make_run(self):
    """Returns a run that trains; its nodes start unless `self.error` is set."""
    one = object.__new__(cluster_run.ClusterRun)
    self.error, names, self.shown = None, iter("3456789"), []

    def start(zone, node):
      del zone, node
      if self.error is not None:
        raise self.error
      return f"n{next(names)}"

    one._start_node = start
    one._joins, one._joining, one._player = [], {}, None
    one._director, one._cluster = mock.Mock(), mock.Mock()
    one._director.take_joins.return_value = 0
    one._progress = mock.Mock(show_text=self.shown.append)
    return one

  def test_who_fails_before_it_has_joined_is_replaced_for_ever(self):
    one, come, ended = self.make_run(), set(), set()
    one._director.has_joined = come.__contains__
    one._cluster.has_failed = ended.__contains__
    one._director.take_joins.side_effect = [2, *[0] * 20]
    for now, comes, ends, joining in (
        (0.0, "n9", "n9", {"n3": 0, "n4": 0}),
        (1.0, "n3", "n3", {"n4": 0}),  # It has ended later.
        (2.0, "n9", "n4", {}),
        (2.9, "n9", "n9", {}),
        (3.0, "n9", "n9", {"n5": 1}),
        (4.0, "n9", "n5", {}),
        (6.0, "n9", "n9", {"n6": 2}),
        (6.0, "n9", "n6", {}),
        (10.0, "n9", "n9", {"n7": 3}),
        (11.0, "n7", "n9", {}),
        (999.0, "n9", "n9", {}),
    ):
      come.add(comes)
      ended.add(ends)
      one._start_due(now)
      found = {name: join.tries for name, join in one._joining.items()}
      self.assertEqual(found, joining, now)
    self.assertEqual(
        [text for text in self.shown if "another" in text],
        [
            "n4 could not join; another one starts in 1 s",
            "n5 could not join; another one starts in 2 s",
            "n6 could not join; another one starts in 4 s",
        ],
    )

  @parameterized.parameters("", "a/1")
  def test_a_node_that_cannot_be_started_is_tried_again(self, node):
    one = self.make_run()
    one._cluster.has_failed.return_value = False
    one._director.has_joined.return_value = False
    trace = readers.parse_events("0,add,a/0\n9,add,a/1", source="t.csv")
    self.error = OSError("Resource temporarily unavailable")
    one._has_stepped = True
    if node:
      planned = replay.plan_replay(trace, time_scale=1)
      one._player = cluster_run.TracePlayer(planned, ["n0"])
    else:
      one._director.take_joins.side_effect = [1, *[0] * 20]
    for now in (0.0, 0.01, 1.5, 3.5):
      one._start_due(now)
    why = "no node can start: Resource temporarily unavailable; another one"
    self.assertEqual(self.shown, [f"{why} starts in {secs} s" for secs in (1, 2, 4)])
    self.error = None
    one._start_due(8.0)
    self.assertEqual(one._joins, [])
    self.assertEqual([*one._joining], [] if node else ["n3"])
    if node:
      self.assertEqual(one._player.names, {"a/0": "n0", "a/1": "n3"})

  def test_faults_that_never_happened(self):
    faults = faults_lib.parse_faults(
        "1,0/0,,kill\n4,0/1,,kill\n6,3/0,2,kill\n8,0/0,,kill", source="f.csv"
    )
    one = object.__new__(cluster_run.ClusterRun)
    one._setup = mock.Mock(faults=faults)
    one._director = mock.Mock(happened={2})
    one._starts, one._last_step = [4, 6], 8  # It was resumed, and began again.
    self.assertEqual(
        one.find_missed(),
        ["warning: --faults, line 3: 6,3/0,2,kill never happened: no live " "node owned 3/0 then."],
    )

  @parameterized.parameters((True, False, True), (False, False, False), (True, True, False))
  def test_a_signal_has_a_step_saved_if_there_is_one(self, has_stepped, is_over, saves):
    one = object.__new__(cluster_run.ClusterRun)
    one._has_stepped = has_stepped
    over = mock.PropertyMock(return_value=is_over)
    with mock.patch.object(cluster_run.ClusterRun, "_is_over", over):
      self.assertEqual(one.ask_to_stop(), saves)
    self.assertEqual(one._is_asked_to_stop, saves)

  @parameterized.parameters(
      dict(num_failed=2, num_kills=2, is_over=False, comes=True),
      dict(num_failed=2, num_kills=1, is_over=False, comes=False),  # By itself.
      dict(num_failed=2, num_kills=2, is_over=True, comes=False),
  )
  def test_who_comes_when_nobody_is_left(self, num_failed, num_kills, is_over, comes):
    one = object.__new__(cluster_run.ClusterRun)
    one._player = None
    one._cluster = mock.Mock(num_failed=num_failed)
    one._director = mock.Mock(kills=dict.fromkeys(range(num_kills), 0.0))
    one._director.call_next.return_value = True
    over = mock.PropertyMock(return_value=is_over)
    with mock.patch.object(cluster_run.ClusterRun, "_is_over", over):
      self.assertEqual(one._expects_joins(), comes)
    self.assertEqual(one._director.call_next.called, comes)
