"""Whole runs, from a config to what is in the workdir.

Compiling is what takes time, seconds per stage and device, so all runs here
share their programs, and most are of one model.
"""

import errno
import hashlib
import io
import json
import os
import shutil
from unittest import mock

from absl.testing import parameterized

from bamboo_jax import base
from bamboo_jax.checkpoint import contents, manifest
from bamboo_jax.metrics import jsonl
from bamboo_jax.runtime.stage import programs as programs_lib
from bamboo_jax.training import control, run
from bamboo_jax.training.record import workdir as workdir_lib
from bamboo_jax.training.setup import accept, build, job as job_lib, optimizers
from tests import folders, samples, tiny
from tests.launch import commands

_MLP_OPTIONS = {"num_blocks": 2, "width": 8, "sequence_length": 8, "vocab_size": 16}
_PROGRAMS = programs_lib.ProgramCache()
_OPTIMIZERS = {}
_make_optimizer = optimizers.make_optimizer

# Trains, but no checkpoint ever gets to the disk.
_NEVER_SAVES = """
import threading

from bamboo_jax.checkpoint import contents
from bamboo_jax.launch import cli
from bamboo_jax.launch import train

contents.write_item = lambda *unused: threading.Event().wait()
cli.run(train.main)
"""


def _shared_optimizer(section, rate):
  """Returns equal optimizers for equal options, as programs need."""
  rates = [float(rate(n)) for n in (1, 2, 5, 40)] if callable(rate) else rate
  key = f"{section} {rates}"
  if key not in _OPTIMIZERS:
    _OPTIMIZERS[key] = _make_optimizer(section, rate)
  return _OPTIMIZERS[key]


def _plan(num_pipelines, num_stages, *, num_shares):
  """Returns the changes for a plan with 4 microbatches."""
  return {
      "pipeline__num_pipelines": num_pipelines,
      "pipeline__num_stages": num_stages,
      "pipeline__num_microbatches": 4 // num_pipelines,
      "pipeline__num_shares": num_shares,
  }


def _read_all(folder):
  """Returns all files but records, which each start adds to."""
  return {k: v for k, v in folders.read_all(folder).items() if not k.startswith("records")}


def _steps_saved(workdir):
  return [name.step for name in manifest.find(workdir / "checkpoints")]


def _losses(workdir):
  return jsonl.column(jsonl.read_lines(workdir / "metrics.jsonl"), "loss")


def _summary(workdir):
  return json.loads((workdir / "summary.json").read_text())


class RunTest(folders.FolderCase):

  def setUp(self):
    super().setUp()
    self.output = io.StringIO()
    for patch in (
        mock.patch.object(programs_lib, "ProgramCache", lambda: _PROGRAMS),
        mock.patch.object(optimizers, "make_optimizer", _shared_optimizer),
        mock.patch("sys.stdout", self.output),
    ):
      self.enterContext(patch)

  def train(self, name, *, stop_at=None, faults=None, **changes):
    """Trains in the workdir called `name`, which is returned."""
    workdir = self.folder / name
    run.train_and_evaluate(
        tiny.make_config(**changes), workdir=str(workdir), stop_at=stop_at, faults=faults
    )
    return workdir

  @parameterized.parameters(
      ("4,0/0,3,kill", True),
      ("3,0/1,apply,kill", True),  # Its shadow has the state before the last step.
      ("4,0/1,apply,kill", False),
      ("3,0/0,apply,kill 4,0/1,apply,kill", False),
  )
  def test_a_negative_control(self, text, is_written):
    """Its hash differs, and is that of the run if no share is lost; none without all sums."""
    changes = _plan(2, 2, num_shares=2) | {"redundancy__mode": "eager"}
    faults, control_path = self.folder / "faults.csv", self.folder / "a" / "control.json"
    faults.write_text("\n".join(text.split()))
    hashes, make = [], control.Control

    def make_control(*given):
      one = make(*given)

      def call(step, metrics):
        one(step, metrics)
        if step == 5 and control_path.exists():
          hashes.append(one.redo(dropped=None))

      return call

    with mock.patch.object(control, "Control", make_control):
      config, workdir = tiny.make_config(**changes), str(self.folder / "a")
      run.train_and_evaluate(config, workdir=workdir, faults=str(faults), with_control=True)
    summary = _summary(self.folder / "a")
    self.assertEqual(hashes, [summary["state_sha256"]] * is_written)
    self.assertEqual(summary["steps"], 5)
    if is_written:
      told = json.loads(control_path.read_text())
      self.assertEqual((told["step"], told["shares"]), (5, 2))
      self.assertNotEqual(told["state_sha256"], summary["state_sha256"])

  def test_outcome(self):
    changes = {"evaluate__every_steps": 4, "metrics__plots": True}
    workdir = self.train("a", **changes)
    names = {"checkpoints", "config.json", "metrics.jsonl", "summary.json"}
    names |= {"trace.json", "rows", "loss.png", "schedule.png", ".lock", "records", "secret"}
    self.assertEqual(set(os.listdir(workdir)), names)
    self.assertEqual(_steps_saved(workdir), [4, 5])
    summary = _summary(workdir)
    self.assertBetween(summary["bubble_fraction"], 0, 1)
    for name in ("params_sha256", "state_sha256"):
      self.assertLen(summary[name], 64)

    lines = jsonl.read_lines(workdir / "metrics.jsonl")
    steps, losses = jsonl.column(lines, "loss", event="eval")
    self.assertEqual(steps, (4,))
    self.assertEqual(summary["evaluation"], {"step": 4, "loss": losses[0]})
    self.assertRegex(
        self.output.getvalue(),
        r"(?m)^step=5 loss=\d\.\d{4} lr=0\.00\d+ tokens_per_sec=\d+ "
        # No price, so no dollars.
        r"bubble_pct=\d+\.\d step_ms=\d+\.\d goodput_pct=\d+\.\d view=1$",
    )

  @parameterized.parameters(*zip(samples.draw(("5/*/node0/d/*", "5.*.json"), 1)))
  def test_damaged_checkpoint_is_passed_over_and_an_older_one_resumed(self, damaged):
    workdir = self.train("a")
    files = (workdir / "checkpoints").glob(damaged)
    path = max(files, key=lambda p: p.stat().st_size)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    is_read = "node0" in damaged  # The other is not even tried.
    config = accept.accept(tiny.make_config(num_steps=8))
    with self.assertLogs("absl", "WARNING") as told:  # Once, and by `bamboo cluster`, too.
      where = workdir_lib.Workdir.at(str(workdir))
      job_lib.check_same(config, build.make_task(config), where)
      self.assertLen(told.output, not is_read)
      self.train("a", num_steps=8)
    found = [text for text in told.output if "Cannot use checkpoint" in text]
    self.assertLen(found, not is_read)
    self.assertEqual(_summary(workdir)["resumed_from_step"], 4)
    self.assertEqual(_steps_saved(workdir), [6, 8])
    events = jsonl.read_lines(workdir / "metrics.jsonl")
    found = [e for e in events if e.get("event") == "damaged"]
    want = [{"event": "damaged", "step": 4, "checkpoint": 5}] * is_read
    self.assertEqual(found, want)
    whole = self.train("whole", num_steps=8)
    self.assertEqual(_summary(workdir)["state_sha256"], _summary(whole)["state_sha256"])
    self.assertEqual(_losses(workdir), _losses(whole))

  # Compiles in a process of its own: 8 s.
  def test_stop_waits_for_no_save(self):
    workdir = self.folder / "parts"
    # Stops at the step of a checkpoint, with the one before in flight for ever.
    given = ("--config=tests/tiny.py", f"--workdir={workdir}", "--stop_at=4")
    done = commands.run("-c", _NEVER_SAVES, *given)
    self.assertEqual((done.returncode, done.stderr), (0, ""))
    self.assertRegex(done.stdout, r"\nstep=4 .*\n$")
    self.assertEqual(_summary(workdir)["steps"], 4)
    self.assertEqual(_steps_saved(workdir), [])

  def test_finished_run_is_left_alone(self):
    workdir = self.train("a")
    before = _read_all(workdir)
    self.train("a")
    self.assertEqual(_read_all(workdir), before)
    self.train("a", num_steps=2)
    before.pop("config.json")
    self.assertEqual(before.items() - _read_all(workdir).items(), set())
    self.assertIn("nothing to do: 5 of num_steps=2", self.output.getvalue())

  # The model has statistics, and is small.
  def test_checkpoint_fits_other_plans(self):
    model = {"model__name": "tests.mlp_bn:make_mlp_bn", "model__options": _MLP_OPTIONS}
    plans = {
        f"{num_pipelines}x{num_stages}": model | _plan(num_pipelines, num_stages, num_shares=4)
        for num_pipelines, num_stages in ((2, 2), (1, 4), (4, 1), (1, 1))
    }
    first = self.train("first", num_steps=2, **plans["2x2"])
    wanted = _summary(first)
    states = {}
    for name, plan in plans.items():
      workdir = self.folder / name
      shutil.copytree(first, workdir)
      os.unlink(workdir / "summary.json")
      self.train(name, num_steps=2, **plan)
      for key in ("params_sha256", "state_sha256"):
        self.assertEqual(_summary(workdir)[key], wanted[key], msg=name)
      self.train(name, num_steps=3, **plan)
      self.assertEqual(_losses(workdir)[0], (1, 2, 3))
      states[name] = _summary(workdir)["state_sha256"]
    self.assertLen(set(states.values()), 1, msg=str(states))

  def test_checkpoint_of_another_run(self):
    workdir = self.train("a", num_steps=2)
    before = _read_all(workdir)
    for changes, message in (
        ({"model__options__width": 32}, "model.options.width is 16 there, 32 here"),
        ({"optimizer__name": "sgd", "optimizer__options": {}}, "of another model or optimizer"),
    ):
      with self.assertRaisesRegex(base.CheckpointError, message):
        self.train("a", num_steps=4, **changes)
      self.assertEqual(_read_all(workdir), before)

  def test_changes_since_the_checkpoint(self):
    code, digests = self.folder / "rates.py", []
    own = dict(optimizer__schedule=f"{code}:make", optimizer__schedule_options={})
    for num_steps, rate in ((2, 0.01), (3, 0.05)):
      code.write_text(f"def make():\n  return lambda count: {rate}\n")
      digests.append(hashlib.sha256(code.read_bytes()).hexdigest()[:12])
      self.output.truncate(0)
      workdir = self.train("a", num_steps=num_steps, **own)
    lines = jsonl.read_lines(workdir / "metrics.jsonl")
    found = [line for line in lines if line.get("event") == "changed"]
    self.assertEqual(
        [(l["step"], l["key"], l["old"], l["new"], l["changes_bits"]) for l in found],
        [(2, f"code.{code}", *digests, True), (2, "num_steps", 2, 3, False)],
    )
    self.assertEqual([self.output.getvalue().count(line["text"]) for line in found], [1, 1])
    (path,) = (workdir / "checkpoints").glob("2.*.json")
    meta = json.loads(path.read_text())["meta"]
    self.assertContainsSubset(
        {"threads", "processor", "versions.jaxlib", "environment.XLA_FLAGS"}, meta["rounding"]
    )
    self.assertEqual(meta["config"]["num_steps"], 2)

  def test_full_disk_for_a_while(self):
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    full = mock.patch.object(contents, "write_item", side_effect=full)
    message = "step 5 .*No space left .* There is no checkpoint; .*same command"
    with full, self.assertRaisesRegex(base.CheckpointError, message):
      self.train("a")
    self.assertIn("step=5", self.output.getvalue())
    workdir = self.train("a")  # There is room again.
    self.assertEqual(_summary(workdir)["resumed_from_step"], 0)
    with full, self.assertRaisesRegex(base.CheckpointError, "is of step 5; once"):
      self.train("a", num_steps=6)
    self.assertEqual(_steps_saved(workdir)[-1], 5)
    self.assertEqual(_losses(workdir)[0], tuple(range(1, 7)))
