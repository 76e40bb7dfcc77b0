"""The command that compares two runs, on what runs leave behind."""

import json
import pathlib

from bamboo_jax.metrics import chrome_trace, slot as slot_lib
from bamboo_jax.report import comparison
from tests import folders
from tests.launch import commands


class CompareTest(folders.FolderCase):

  def write_run(self, name, *, state="a", nodes=()):
    folder = self.folder / name
    folder.mkdir()
    summary = dict(steps=3, final_loss=2.0, samples_seen=12, params_sha256="p")
    summary |= dict(state_sha256=state, resumed_from_step=0)
    summary |= dict(median_step_secs=0.1, bubble_fraction=0.3)
    (folder / "summary.json").write_text(json.dumps(summary))
    lines = [{"step": step, "loss": 5.0 - step} for step in (1, 2, 3)]
    lines += [{"step": 1, "event": "recovery", "nodes": [n], "victims": [f"0/{n}"]} for n in nodes]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text)
    return str(folder)

  # Each starts Python, and one of them draws: two seconds.
  def test_figure(self):
    runs = [self.write_run("plain"), self.write_run("deaths", nodes=(1, 2))]
    path = self.folder / "losses.svg"
    done = commands.fork("-m", "launch.report", *runs, f"--out={path}")
    self.assertEqual(done.returncode, 0, done.stderr)
    self.assertIn(f"figure: {path}\n", done.stdout)
    self.assertIn("stages_lost=2", done.stdout)
    self.assertEndsWith(done.stdout, "identical\n")
    text = path.read_text()
    for label in ("plain: train", "deaths: train", "deaths: 2 deaths"):
      self.assertIn(f"<!-- {label} -->", text)
    self.assertNotIn("as planned", text)

  def test_the_step_of_the_first_pipeline_is_drawn(self):
    run = pathlib.Path(self.write_run("plain"))
    layout = {"step": 1, "event": "layout", "owners": [[0, 10], [2, 3]]}
    with open(run / "metrics.jsonl", "a") as log:
      log.write(json.dumps(layout) + "\n")
    slots = [slot_lib.TrackSlot(f"node {n}", "0F0", 0.0, 9.0) for n in (0, 2, 10)]
    step = chrome_trace.TracedStep(3, 0.0, slots, slots)
    chrome_trace.write(run / "trace.json", [step])
    (path,) = comparison.save_figure([run], self.folder / "a.svg", ["svg"])
    text = path.read_text()
    for label, is_there in ("node 0", 1), ("node 10", 1), ("node 2", 0):
      self.assertEqual(text.count(f"<!-- {label} -->"), is_there)

  def test_formats_and_a_difference(self):
    runs = [self.write_run("a"), self.write_run("b", state="other")]
    options = [f"--out={self.folder}/a.png", "--figure_format=pdf,png"]
    done = commands.fork("-m", "launch.report", *runs, *options)
    self.assertEqual(done.returncode, 1)
    self.assertEqual(done.stderr, "different: state_sha256\n")
    self.assertEqual(sorted(p.name for p in self.folder.glob("a.*")), ["a.pdf", "a.png"])
