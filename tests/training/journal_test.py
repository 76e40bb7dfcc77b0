import dataclasses
import io
import json
import types
from typing import Any
from unittest import mock

from absl.testing import parameterized
import numpy as np

from bamboo_jax import base, config as config_lib
from bamboo_jax.accounting import account as account_lib, machines
from bamboo_jax.base import logs
from bamboo_jax.checkpoint import arrays as layer_arrays
from bamboo_jax.metrics import jsonl, progress as progress_lib, rows as rows_lib
from bamboo_jax.plan import partition as partition_lib, pipelines as pipelines_lib
from bamboo_jax.recovery import layout as layout_lib
from bamboo_jax.report import figures
from bamboo_jax.runtime import devices as devices_lib
from bamboo_jax.runtime.profile import products
from bamboo_jax.runtime.stage import spec as spec_lib
from bamboo_jax.schedule import failover, instruction as instruction_lib, timeline as timeline_lib
from bamboo_jax.training import step as step_lib
from bamboo_jax.training.record import (
    charges as charges_lib,
    journal as journal_lib,
    workdir as workdir_lib,
)
from bamboo_jax.training.setup import accept, job as job_lib, sizes
from tests import folders, layouts, limits, tiny
from tests.training import deaths_test

_OWNERS = ((0, 1), (2, 3))


def _recovery(step, *, view):
  secs = dict(view_at_secs=1.0, agreed_at_secs=1.5, ready_at_secs=2.0)
  return deaths_test.make_recovery(
      step=step, view=view, nodes=(0,), names=("n0",), victims=("0/0",), **secs
  )


@dataclasses.dataclass
class State:
  """The part of a `run_state.RunState` that a journal looks at."""

  nodes: dict
  number: int
  layout: layout_lib.Layout = layouts.lay_out(*_OWNERS, shares=((0,), ()))
  rung: str = "none"
  steps: int = 0
  num_updates: int = 1  # Of parameters, after the last step.
  writer: Any = dataclasses.field(default_factory=lambda: types.SimpleNamespace(changes=()))

  @property
  def is_writer(self):
    return self.number == min(self.nodes)

  @property
  def full_layout(self):
    return self.layout


def _committed(step, weight=64.0, **facts):
  sums = step_lib.StepSums(weight * (10.0 - step), weight, 1 / 64, 0.5)
  given = dict(secs=2.0, start_secs=100.0 + 2 * step, instructions=(), phase_secs={"compute": 1.5})
  return step_lib.StepRecord(steps=step, view=1, sums=sums, **given | facts)


def _measured(step, **facts):
  """Returns a committed step with one instruction of node 1."""
  slot = deaths_test.make_pass(1, 1, "F", 103.0, 103.5)
  return _committed(step, instructions=[slot], **facts)


class JournalTest(folders.FolderCase):
  """Nodes 0 to 3 in one process; the lowest that lives writes."""

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.config = accept.accept(tiny.get_config())
    cls.job = job_lib.make_job(cls.config, devices=devices_lib.place_nodes([0, 1]))
    cls.digests = layer_arrays.digest(spec_lib.init_layers(cls.job.task.whole))

  def setUp(self):
    super().setUp()
    names = {**{n: f"n{n}" for n in range(4)}, 1: "n5", 9: "n7"}
    self.enterContext(mock.patch.dict(logs._names, names, clear=True))
    self.nodes, self.told = {}, b""
    self.workdir = workdir_lib.Workdir(self.folder)
    self.shown = io.StringIO()
    for number in range(4):
      self.join(number)

  def join(self, number, job=None, **given):
    node = journal_lib.Journal(
        job or self.job,
        job_lib.Environment(
            cohort=None,
            workdir=self.workdir,
            progress=progress_lib.ProgressLine(num_steps=9, stream=self.shown),
            name=f"n{number}",
            **given,
        ),
        State(self.nodes, number),
    )
    self.nodes[number] = node
    self.addCleanup(node.close)
    return node

  def restart(self, *numbers, step=0, **given):
    """Begins another life, of these nodes."""
    self.nodes = {}
    for number in numbers:
      self.join(number, **given)
    self.begin(step)

  def set_state(self, **facts):
    for node in self.nodes.values():
      vars(node._state).update(facts)

  def test_rows_of_an_earlier_run_go(self):
    cleared = self.enterContext(mock.patch.object(self.workdir, "clear_rows"))
    self.begin()
    cleared.assert_called_once()  # By the writer.

  def test_an_end_that_is_not_copied_to_the_bucket_is_no_success(self):
    def push(name, is_writer=True):
      raise OSError("gs://b/run: no answer")

    self.begin()
    self.train(1)
    self.workdir.push = push
    for _ in range(2):
      with self.assertRaisesRegex(base.NodeFailedError, "gs://b/run: no answer. The same command"):
        self.nodes[0].write_summary(1, self.digests)
      self.assertTrue(self.workdir.summary.exists())
      self.join(0).begin(1)  # The same command finds that all is done.

  def make_job(self, **changes):
    config = tiny.make_config(
        optimizer__schedule_options={"init_value": 0.0, "warmup_steps": 1}, **changes
    )
    config.optimizer.schedule_options.decay_steps = 3
    return job_lib.make_job(accept.accept(config), devices=self.job.engine.devices)

  def begin(self, step=0):
    for node in self.nodes.values():
      node.begin(step)

  def train(self, *steps, make=_committed, **facts):
    for step in steps:
      for node in self.nodes.values():
        node.write_step(make(step, **facts))

  def lines(self, event=None):
    """Returns steps, or events, as told so far; they are never rewritten."""
    content = (self.folder / "metrics.jsonl").read_bytes()
    self.assertStartsWith(content, self.told)
    self.told = content
    lines = jsonl.read_lines(self.folder / "metrics.jsonl")
    return [line for line in lines if line.get("event") == event]

  def test_compiled_programs_are_counted(self):
    self.begin()
    self.enterContext(mock.patch.object(journal_lib, "_COUNT_SECS", -1.0))
    for done in (1, 2, 3):
      self.nodes[0].count_compiled(done, 3)
    said = [line["reason"] for line in self.lines("pause")]
    self.assertEqual(said, ["2 of 3 programs are compiled"])

  def test_share_of_the_peak(self):
    for peak, want in ((None, None), (1e-3, 4 * 1e9)):  # That of a CPU is not known.
      with mock.patch.object(machines, "find_peak_tflops", return_value=peak):
        self.restart(0)
        self.train(1)
      flops = sum(products.layer_flops(self.job.task.whole).values())
      flops *= 3 * self.job.plan.batch.total_microbatches
      found = self.lines()[-1].get("mfu_pct")
      self.assertAlmostEqual(found, want and 100 * flops / (2.0 * want))

  def test_layouts_and_joins(self):
    self.begin()
    self.train(1)
    self.set_state(layout=layouts.lay_out((0, 1), (2, 9)), rung="repair")
    for node in self.nodes.values():
      node.welcome({0: 50.0, 9: 20.0}, in_step=False)
    self.train(2, 3)
    self.assertEqual(
        [(l["step"], l["rung"], l["owners"]) for l in self.lines("layout")],
        [(1, "none", [[0, 1], [2, 3]]), (2, "repair", [[0, 1], [2, 9]])],
    )
    (join,) = self.lines("join")
    self.assertEqual(join["boot_secs"], {"9": 20.0})
    idle = [line["account"]["parts"]["idle"] for line in self.lines()]
    self.assertGreaterEqual(idle[1], idle[0] + 20.0)

  def test_a_layout_names_the_owner_of_each_stage_of_uneven_pipelines(self):
    whole = layouts.make_layout([failover.Roles((0, 1, 2))], ((0,), ()))
    two = pipelines_lib.Pipeline(partition_lib.Partition((0, 1, 3)), failover.Roles((3, 4)))
    less = dataclasses.replace(two, vacant=frozenset({1}))
    self.restart(0)
    self.set_state(layout=dataclasses.replace(whole, pipelines=(*whole.pipelines, less)))
    self.train(1)
    # The first pipeline computes for the stage that is vacant.
    self.assertEqual(self.lines("layout")[-1]["owners"], [[0, 1, 2], [3, 1]])

  def steps(self, event=None):
    return [line["step"] for line in self.lines(event)]

  def summary(self, step):
    self.nodes[min(self.nodes)].write_summary(step, self.digests)
    return json.loads((self.folder / "summary.json").read_text())

  def test_lines_and_summary(self):
    self.begin()
    self.train(1)
    passes = account_lib.NodeTime(useful=4.5, redundant=2.0)  # Of all nodes.
    self.train(2, measured=step_lib.Measured(passes, span_secs=3.0))
    _, second = self.lines()
    self.assertEqual(second["phase_ms"], {"compute": 1500.0})
    wanted = dict(loss=8.0, tokens_per_sec=32.0, samples_seen=2 * 4, view=1)
    self.assertContainsSubset(wanted, second)
    self.assertContainsSubset({"useful": 4.5, "redundant": 2.0}, second["account"]["parts"])
    self.assertAlmostEqual(second["bubble_pct"], 100 * (1 - 6.5 / (4 * 3)))
    summary = self.summary(2)
    wanted = dict(final_loss=8.0, resumed_from_step=0, median_step_secs=2.0)
    self.assertContainsSubset(wanted, summary)
    self.assertEqual(summary["cost"]["num_samples"], 8)

  def test_a_loss_that_is_not_finite_is_null(self):
    self.begin()
    self.train(1, weight=float("nan"))
    self.assertIsNone(self.summary(1)["final_loss"])

  @parameterized.parameters("tokens", None)
  def test_the_unit_of_a_rate_never_changes(self, unit):
    for node in self.nodes.values():
      node._unit = unit  # Of the source; None if it does not tell.
    self.begin()
    self.train(1)
    self.train(2, weight=2.0)  # Of 4 samples with hardly a target.
    self.nodes = {}
    self.join(7)._unit = unit  # It has seen no step before.
    self.train(3, weight=2.0)
    rates = [line.get("tokens_per_sec") for line in self.lines()]
    self.assertEqual(rates, [32.0, 1.0, 1.0])

  @parameterized.named_parameters(
      ("all_have_committed", True, True, 2.0),
      ("it_has_not_told", False, True, 2.0),
      ("it_alone_has_committed", True, False, 5.0),  # They do it again.
      ("nobody_has", False, False, 5.0),
  )
  def test_time_is_charged_once(self, has_told, have_heard, secs):
    self.now = 102.0
    clock = types.SimpleNamespace(perf_counter=lambda: self.now)
    self.enterContext(mock.patch.object(charges_lib, "time", clock))
    self.restart(*range(4))
    for self.now, step in ((104.0, 1), (106.0, 2)):
      self.train(step)
    self.now = 108.0
    third = _committed(3)
    dead, left = self.nodes[0], [*self.nodes.values()][1:]
    if has_told:
      dead.write_step(third)
    if have_heard:
      for node in left:
        node.write_step(third)
    del self.nodes[0]
    dead.close()
    self.now = 106.0 + secs
    if not have_heard:
      self.train(3, secs=secs)
    start, self.now = self.now + 0.5, self.now + 2.5
    self.train(4, start_secs=start)
    self.assertEqual(self.steps(), [1, 2, 3, 4])
    account = self.lines()[-1]["account"]
    self.assertEqual(account["secs"], self.now - 102.0)
    self.assertEqual(account["node_secs"], 4 * account["secs"])
    self.assertEqual(account["parts"]["lost"], 0.0)
    self.assertEqual(account["num_samples"], 16)

  def test_skipped_steps_and_rates(self):
    """Skips are told once each; the next member that writes knows all rates."""
    self.begin()
    self.train(1)
    self.train(2, 3, skipped="not finite")
    del self.nodes[0]
    self.nodes[1].write_event("eval", step=3, values={})  # Takes over.
    self.set_state(num_updates=2)
    self.train_without(1, 4)
    self.set_state(num_updates=3)
    self.train(5)
    rates = [line["learning_rate"] for line in self.lines()]
    peak = self.config.optimizer.learning_rate  # After 3 steps of warmup.
    np.testing.assert_allclose(rates, peak * np.array([0, 1, 1, 1, 2]) / 3, rtol=1e-6)
    self.assertIn(" lr=0.0033333 ", self.shown.getvalue())
    skipped = {"event": "skipped", "reason": "not finite"}
    self.assertEqual(self.lines("skipped"), [{"step": 2, **skipped}, {"step": 3, **skipped}])
    self.assertEqual(self.steps(), [1, 2, 3, 4, 5])
    self.assertEqual(self.summary(5)["skipped_steps"], 2)

  def test_lines_that_cannot_be_written_are_late(self):
    self.begin()
    full = OSError(28, "No space left on device")
    with mock.patch.object(jsonl.MetricsWriter, "_write", side_effect=full):
      self.train(1, 2)
    self.train(3)
    self.assertEqual(self.steps(), [1, 2, 3])
    self.assertEqual(self.shown.getvalue().count("Cannot write"), 1)

  def test_an_event_of_long_ago_removes_nothing(self):
    self.begin()
    self.train(1, 2, 3)
    del self.nodes[0]
    self.nodes[1].write_event("save_failed", step=1, values={"reason": "why"})
    self.assertEqual(self.steps(), [1, 2, 3])

  def test_what_a_dead_writer_left_untold_has_its_own_layout(self):
    self.begin()
    self.train(1)
    dead = self.nodes[0]
    self.train_without(0, 2)
    layout = layouts.lay_out((1, 1), (2, 3), shares=((), ()))
    self.set_state(layout=layout, rung="repair")  # Of the last change between two steps.
    self.train(3, recoveries=(_recovery(3, view=2),))
    dead.close()
    dropped = [line["samples_dropped"] for line in self.lines()]
    self.assertEqual(dropped[0], dropped[1])
    self.assertGreater(dropped[2], dropped[1])
    first, *_, last = self.lines("layout")
    self.assertEqual((first["step"], first["owners"]), (1, [[0, 1], [2, 3]]))
    self.assertEqual((last["step"], last["rung"], last["owners"]), (3, "shadow", [[1, 1], [2, 3]]))
    self.assertEqual(self.steps(), [1, 2, 3])

  def test_the_summary_comes_last(self):
    """Also if figures cannot be drawn: a launcher ends all members soon after it is there."""
    there = []

    def draw(*args, **options):
      del args, options
      there.append((self.folder / "summary.json").exists())
      raise OSError("no space")

    self.enterContext(mock.patch.object(figures, "draw_losses", draw))
    self.restart(0, job=self.make_job(metrics__plots=True))
    self.train(1)
    with self.assertRaisesRegex(OSError, "no space"):
      self.summary(1)
    self.assertEqual(there, [False])
    self.assertTrue((self.folder / "summary.json").exists())

  def test_trace_has_the_plan_of_each_of_the_last_steps(self):
    config = self.job.config.changed({"metrics.trace_steps": 2})
    self.restart(*range(4), job=dataclasses.replace(self.job, config=config))
    i = instruction_lib.Instruction(1, instruction_lib.Op.RECV_GRAD, 2, 3)
    planned = [timeline_lib.Timeline((timeline_lib.Slot(0, i, 0.0, 3.0),), (0,), 3.0)]
    self.train(1, 2, make=_measured, planned=planned)
    self.train(3, make=_measured, planned=planned, recoveries=(_recovery(3, view=2),))
    for node in self.nodes.values():
      node.flush()
    self.summary(3)
    events = json.loads((self.folder / "trace.json").read_text())["traceEvents"]
    steps = lambda pid: [e["args"]["step"] for e in events if e["pid"] == pid and e["ph"] == "X"]
    self.assertEqual(steps(1), [2, 3])
    self.assertCountEqual(steps(2), [2] * 4 + [3] * 4)  # By four members.
    (death,) = [e for e in events if e["ph"] == "i"]
    self.assertEqual((death["name"], death["args"]["step"]), ("n0 dies", 3))
    found = rows_lib.read_steps(self.workdir.rows, [])
    self.assertEqual({slot.track for step in found for slot in step.measured}, {"n5"})
    self.restart(0)
    self.assertEmpty([*self.workdir.rows.iterdir()])

  def train_without(self, writer, first, *steps):
    """Lets all commit a step, of which the writer does not tell any more."""
    del self.nodes[writer]
    self.nodes[-1] = None  # So none of them is the writer yet.
    for node in [*self.nodes.values()][:-1]:
      node.write_step(_committed(first))
    del self.nodes[-1]
    self.train(*steps)

  def test_dollars_are_shown_if_the_kind_of_node_is_named(self):
    config = self.job.config.changed({"cost.instance": "p3.2xlarge"})
    self.restart(0, job=dataclasses.replace(self.job, config=config))
    self.train(1)
    (line,) = self.lines()
    self.assertGreater(line["usd"], 0.0)
    self.assertIn(f" usd={line['usd']:.5g} view=1\n", self.shown.getvalue())
    self.assertGreater(self.summary(1)["cost"]["cost_usd"], line["usd"])

  def test_what_happens_before_a_step_has_its_number(self):
    self.begin()
    self.train(1)
    for number, node in self.nodes.items():
      node._state.steps = 1
      node.explain("n9 joined")
      node.welcome({9: 20.0}, in_step=number == 0)
    self.assertEqual(self.steps("join"), [2])
    pause = {"step": 2, "event": "pause", "reason": "n9 joined"}
    self.assertEqual(self.lines("pause"), [pause])
    del self.nodes[0]  # It dies in step 2; the join has happened.
    for node in self.nodes.values():
      node.explain("n0 died")
    self.train(2)
    self.assertEqual(self.steps("join"), [2])
    reasons = [l["reason"] for l in self.lines("pause")]
    self.assertEqual(reasons[-1], "n0 died")
    self.assertEqual(self.steps(), [1, 2])

  def test_who_waits_without_a_layout_says_why(self):
    self.begin()
    self.train(1, 2)
    self.nodes = {}
    pulled = self.enterContext(mock.patch.object(self.workdir, "pull"))
    for number in (4, 5):
      node = self.join(number)
      node._state.steps, node._state.layout = -1, layout_lib.Layout()
      node._state.nodes = {3: None}  # Neither is the writer.
      node.explain_wait("waiting: 2 more.", acts=number == 4)
    pause = {"step": 3, "event": "pause", "reason": "waiting: 2 more."}
    self.assertEqual(self.lines("pause"), [pause])
    pulled.assert_called_once()  # Another machine may have the log.
    with limits.file_size(0), self.assertLogs("absl", "WARNING") as logged:
      self.nodes[4].explain_wait("waiting: 3 more.", acts=True)  # A full disk ends no wait.
    self.assertIn("metrics.jsonl", logged.output[0])
    self.restart(0, step=1)  # Then they repeat step 2.
    self.assertEqual(self.steps(), [1])
    self.assertEmpty(self.lines("pause"))
    self.nodes[0].explain_wait("waiting: 1 more.", acts=True)  # As the writer.
    self.assertLen(self.lines("pause"), 1)

  @parameterized.parameters(1, 2)
  def test_recoveries_outlive_writers_and_come_once(self, num_dead):
    """Also if the next one dies before it has told of a step, as all go back."""
    self.begin()
    self.train(1)
    self.train(2, recoveries=(_recovery(2, view=2),))
    self.train(3, recoveries=(_recovery(3, view=3),))
    self.join(7)
    for writer in range(num_dead):
      del self.nodes[writer]
      for node in self.nodes.values():
        node.roll_back(1)
      self.assertEqual(self.steps(), [1])
    self.join(8)
    self.train(2, recoveries=(_recovery(2, view=4),))
    summary = self.summary(2)
    self.assertEqual([r["view"] for r in summary["recoveries"]], [2, 3, 4])
    self.assertEqual(summary["recoveries"][0]["nodes"], [0])
    self.assertIn("step 3: n0 (stage 0/0) died; ", self.shown.getvalue())
    self.assertGreater(summary["cost"]["lost_pct"], 0)

  def test_resumes(self):
    self.begin()
    self.train(1, recoveries=(_recovery(1, view=2),))
    self.set_state(layout=layouts.lay_out(*_OWNERS, shares=((), ())))
    self.train(2, 3)
    self.restart(0, 1, step=2)
    self.train(3, 4, 5)
    self.join(7)
    del self.nodes[0], self.nodes[1]  # Whoever has come later knows, too.
    self.assertEqual(self.steps(), [1, 2, 3, 4, 5])
    summary = self.summary(5)
    self.assertEqual(summary["resumed_from_step"], 2)
    self.assertEqual(summary["recoveries"], [])
    self.assertEqual((summary["samples_seen"], summary["samples_dropped"]), (20, 4))
    self.assertEqual(summary["cost"]["num_samples"], 16)

  def test_nothing_to_do_leaves_the_summary(self):
    self.begin()
    self.train(1)
    before = self.summary(1)
    self.restart(0, step=1)
    for state, is_left in ((before["state_sha256"], True), ("of another step", False)):
      former = before | {"state_sha256": state, "mark": 1}
      (self.folder / "summary.json").write_text(json.dumps(former))
      self.assertEqual("mark" in self.summary(1), is_left)

  @parameterized.parameters(
      (2, 1, "depth", "4 samples a step: 2 copies x 2 microbatches x 1"),
      (1, 8, "depth", "16 samples a step: 1 copy x 2 microbatches x 8"),
      (2, 1, "templates", "4 samples a step: 4 microbatches x 1"),
  )
  def test_batch_in_words(self, num_pipelines, size, layout, want):
    given = dict(num_pipelines=num_pipelines, microbatch_size=size, layout=layout)
    config = config_lib.Config().changed(
        {f"pipeline.{k}": v for k, v in given.items()} | {"pipeline.num_microbatches": 2}
    )
    self.assertEqual(sizes.describe_batch(config), want)

  def test_warnings_are_shown_and_written_once(self):
    self.nodes = {}
    for number in (0, 1):
      self.join(number, job=self.make_job())
    self.nodes[1]._given = dataclasses.replace(self.nodes[1]._given, progress=None)
    self.begin(2)
    (warning,) = [line["text"] for line in self.lines("warning")]
    self.assertStartsWith(warning, "the learning rate is 0 from step 4 of config.num_steps=5 on")
    self.assertEqual(
        self.shown.getvalue().splitlines()[2:], ["resumed_from_step=2", f"warning: {warning}"]
    )

  def test_a_logger_that_fails_in_the_last_step_is_named(self):
    (self.folder / "metrics.csv").mkdir()  # So it cannot be written.
    self.restart(0, job=self.make_job(metrics__logger="csv"))
    self.train(1)
    self.summary(1)
    (line,) = [l for l in self.lines("warning") if "metrics.csv" in l["text"]]
    self.assertStartsWith(line["text"], "No more lines for logger csv: [Errno 21] Is a")
    self.assertEndsWith(line["text"], "/metrics.csv'. Training continues.")
    self.assertEqual(self.steps(), [1])

  def test_code_of_the_user_that_raises_is_called_once(self):
    def fail(step, metrics):
      self.assertIn("loss", metrics)
      called.append(step)
      raise KeyError("mine")

    called = []
    self.restart(0, callbacks=(fail,))
    self.train(1, 2)
    node = self.nodes[0]
    self.assertEqual(called, [1])
    self.assertIn("The callback raised", node.failures.first.text)
    self.assertIsInstance(node.failures.error.__cause__, KeyError)

  def test_code_of_the_user_that_raises_after_the_last_step_is_named(self):
    def fail():
      raise KeyError("mine")

    self.restart(0)
    node, nothing = self.nodes[0], lambda *unused: None
    own = types.SimpleNamespace(log=nothing, event=nothing, close=fail)
    node._own.append(("logger 'a'", own))
    self.train(1)
    with self.assertLogs("absl", "WARNING") as logged:
      node.close()
    self.assertIn("The logger 'a' raised", logged.output[0])

  def test_a_new_life_is_above_the_last(self):
    self.begin()
    self.train(1, 2)
    late = self.nodes[0]
    self.restart(0, step=1)
    self.train(2)
    late._state = State({0: late}, 0)
    late.write_step(_committed(3, weight=1.0))  # It does not know that it is over.
    self.train(3)
    self.assertEqual([line["loss"] for line in self.lines()], [9.0, 8.0, 7.0])
    content = (self.folder / "metrics.jsonl").read_text().splitlines()
    self.assertEqual({json.loads(line)["life"] for line in content}, {1, 2})
