"""A cluster of real processes, three of which are killed; takes a minute.

What a run without failures comes to is computed in another process meanwhile.
"""

import json
import signal
import time

import numpy as np

from bamboo_jax.metrics import jsonl
from tests.launch import commands


@commands.needs_etcd
class ClusterTest(commands.CommandCase):

  CHANGES = {
      "num_steps": 6,
      "model.options.lora_rank": 2,  # So units have nothing to sum.
      "redundancy.refresh": "state",
      "pipeline.num_pipelines": 2,
      "pipeline.num_stages": 2,
      "pipeline.num_microbatches": 4,
      "pipeline.num_shares": 4,
      "checkpoint.every_steps": 2,
      "evaluate.every_steps": 2,
  }
  QUEUED_BYTES = 1 << 12  # So that nodes die while others wait to send.

  def setUp(self):
    super().setUp()
    tokens = np.random.default_rng(0).integers(0, 16, 20_000, np.uint16)
    (self.folder / "tokens.bin").write_bytes(tokens.tobytes())

  def start(self, command, *arguments, **options):
    """All processes read tokens from a file, which the launcher has opened."""
    name = f"--config.data.name={self.folder / 'tokens.bin'}"
    return super().start(command, name, *arguments, **options)

  def evaluations(self, name):
    lines = jsonl.read_lines(self.folder / name / "metrics.jsonl")
    return jsonl.column(lines, "loss", event="eval")

  def saved(self, name):
    """Returns the hash of each layer in the last checkpoint."""
    path = self.folder / name / "checkpoints" / "6" / "manifest.json"
    layers = json.loads(path.read_text())["layers"]
    return {layer: entry["sha256"] for layer, entry in layers.items()}

  def test_bits_of_the_run_without_a_kill(self):
    faults = ("2,0/1,6,kill", "3,1/0,reduce,kill", "4,0/0,7,kill")
    recoveries = self.compare(self.write_faults(*faults))
    self.assertEqual(self.evaluations("killed"), self.evaluations("whole"))
    self.assertEqual(self.saved("killed"), self.saved("whole"))
    # One machine has one folder of programs, for all runs.
    self.assertFalse((self.folder / "killed" / "programs").exists())
    self.assertEqual(
        [(*r["victims"], r["rung"]) for r in recoveries],
        [("0/1", "shadow"), ("1/0", "shadow"), ("0/0", "0/1", "reroute")],
    )
    for recovery in recoveries:
      self.assertGreater(recovery["kill_to_first_instruction_secs"], 0.0)
    summary = json.loads((self.folder / "killed" / "summary.json").read_text())
    # In waits, as far as both pipelines were whole.
    self.assertEqual(summary["redundancy"]["mode"], "eager")
    self.assertGreater(summary["redundancy"]["passes"], 0)

  def test_who_is_left_waits_for_others(self):
    """Also for who is told by somebody else how to begin."""
    recoveries = self.compare(
        *("--config.pipeline.num_pipelines=1", "--config.redundancy.mode=none"),
        "--config.pipeline.num_microbatches=8",
        *("--config.pipeline.layout=templates", "--config.recovery.fold=False"),
        self.write_faults("3,,,leader", "5,,,join"),
    )
    self.assertEqual([r["rung"] for r in recoveries], ["wait", "checkpoint"])

  def test_an_interrupt_saves_the_step(self):
    run = self.start("cluster", "--config.num_steps=100000", workdir="saved")
    for line in run.stdout:
      if line.startswith("step=3 "):
        break
    run.send_signal(signal.SIGTERM)
    said, _ = run.communicate(timeout=60)
    self.assertEqual(run.returncode, 143, msg=said)
    saved = [*(self.folder / "saved" / "checkpoints").glob("[0-9]*")]
    steps = jsonl.read_lines(self.folder / "saved" / "metrics.jsonl")
    last = max(line["step"] for line in steps)
    self.assertIn(last, [int(path.name) for path in saved])
    self.assertIn(f"goes on from step {last}, which is saved", said)
    self.assertEqual(commands.processes_that_name(str(self.folder)), [])

  def test_an_interrupt_leaves_nothing_behind(self):
    run = self.start("cluster", workdir="interrupted")
    end_secs = time.monotonic() + 60
    for module in ("bamboo_jax.launch.agent", "bamboo_jax.launch.worker"):  # By these names.
      while run.poll() is None and time.monotonic() < end_secs:
        ours = {*commands.processes_that_name(str(self.folder))}
        ours &= {*commands.processes_that_name(f"-m {module} ")}
        if len(ours) >= 4:
          break
        time.sleep(0.05)
      else:
        self.fail(f"There are {len(ours)} processes of {module}.")
    run.send_signal(signal.SIGINT)
    said, _ = run.communicate(timeout=60)
    self.assertEqual(run.returncode, 130, msg=said)
    self.assertIn("all processes have ended; nothing is saved", said)
    self.assertEqual(commands.processes_that_name(str(self.folder)), [])
