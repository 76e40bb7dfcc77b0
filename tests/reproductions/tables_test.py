"""The experiments that set simulated figures beside published ones."""

import csv
import functools
import json

from absl.testing import parameterized

from bamboo_jax.experiments import compare, sweep
from bamboo_jax.reproductions import publish as publish_lib
from bamboo_jax.reproductions.bamboo import table as bamboo_bert
from bamboo_jax.reproductions.oobleck import evaluation as oobleck
from bamboo_jax.training.setup import accept
from configs.sim import checkpoint_strawman as strawman_config, parcae as parcae_config
from tests import folders

_PARCAE = list(csv.DictReader((publish_lib.PUBLISHED / "parcae_simulated.csv").open()))


class PublishedTest(folders.FolderCase):

  def _run(self, experiment, *arguments, **options):
    where = sweep.Where(num_processes=1)
    with folders.printed() as out:
      experiment.run(*arguments, workdir=self.folder, where=where, **options)
    with (self.folder / "summary.csv").open() as file:
      return list(csv.DictReader(file)), out.getvalue()

  def test_bamboo(self):
    rows, out = self._run(bamboo_bert, probabilities=(0.01, 0.1), num_seeds=12)
    names = ("policy", "preemption_probability", "step_times")
    want = ["artifact_bamboo_raw 0.01 artifact", "artifact_bamboo_raw 0.1 artifact"]
    want += ["bamboo 0.01 calibrated", "bamboo 0.1 calibrated"]
    want += ["on_demand  artifact", "artifact_on_demand  artifact"]
    self.assertEqual([" ".join(row[name] for name in names) for row in rows], want)
    self.assertAlmostEqual(float(rows[4]["value"]), 1.07, delta=0.01)
    self.assertIn("## bamboo (calibrated step times)", out)
    report = json.loads((self.folder / "report.json").read_text())
    self.assertIn("bamboo (calibrated step times)", report["series"]["value"]["lines"])
    self.assertIn("calibrated", (self.folder / "report.html").read_text())

  @parameterized.parameters(*_PARCAE)
  def test_parcae(self, **row):
    config = parcae_config.get_config(row["model"])
    config.metrics.plots = False
    pause_secs = float(row["mean_pause_s"])
    config.study.durations.reconfigure_secs = pause_secs
    config.study.durations.restart_secs = pause_secs
    if row["policy"] == "proactive":  # Looks 12 minutes ahead.
      config.recovery.horizon_secs = 720.0
    trace = compare.Preemptions((str(publish_lib.PUBLISHED / "parcae_p3.csv"),))
    config = accept.accept(config, is_study=True)
    (got,), _ = self._run(compare, config, ["oobleck+grid"], preemptions=trace)
    ratio = float(got["throughput_samples_per_sec"]) / float(row["samples_per_s"])
    if (row["model"], row["policy"]) == ("gpt-6.7b", "reactive"):
      self.assertBetween(ratio, 1.3, 1.4)  # It pauses when it need not.
    elif row["policy"] == "reactive":
      self.assertBetween(ratio, 0.95, 1.05)
    else:
      self.assertBetween(ratio, 0.98, 1.01)

  def test_other_models_of_bamboo_have_no_published_table(self):
    rows, out = self._run(bamboo_bert, "VGG", num_seeds=1)
    self.assertLen(rows, 7)
    self.assertEqual(rows[0]["value_ci95"], "")  # One seed has no interval.
    self.assertNotIn("published |", out)

  def test_refuses(self):
    for run, model, message in (
        (functools.partial(self._run, bamboo_bert), "GPT2", "did you mean 'GPT-2'"),
        (functools.partial(self._run, oobleck), "GPT3", "Unknown model 'GPT3'; did you mean"),
        (parcae_config.get_config, "bertt", "'bertt'; did you mean 'bert'"),
    ):
      with self.assertRaisesRegex(ValueError, message):
        run(model)

  def test_oobleck_of_a_model_with_notes(self):
    rows, out = self._run(oobleck, "GPT-3-2.7b")
    rows = [row for row in rows if row["trace"] == "10m"]
    self.assertEqual([row["policy"] for row in rows], ["bamboo", "varuna", "oobleck"])
    throughputs = [row["throughput_samples_per_sec"] for row in rows]
    self.assertEqual(throughputs[0], "")
    self.assertAlmostEqual(float(throughputs[2]), 6.89, delta=0.01)
    self.assertEqual(
        [row["note"] for row in rows], ["OOM", "hangs on the scan order of a heap", ""]
    )
    self.assertIn("| 10m, GPT-3-2.7b, oobleck | 6.89 | 6.89 | 1.000 |", out)

  def test_checkpoint_strawman(self):
    config = strawman_config.get_config()
    config.study.trace.hours = 4.0
    rows, _ = self._run(
        compare,
        accept.accept(config, is_study=True).changed({"metrics.plots": False}),
        ["checkpoint"],
        preemptions=compare.Preemptions(),
        sweep=compare.Sweep("study.durations.restart_secs", (73.3, 123.3), 2),
    )
    restarts, lost = [], []
    for row in rows[1:]:
      get = lambda name, row=row: float(row[f"{name}_pct"])
      parts = ("useful", "lost", "restart", "idle")
      self.assertAlmostEqual(sum(map(get, parts)), 100.0, delta=0.01)
      lost.append(1 - get("useful") / (100 - get("idle")))
      restarts.append(float(row["restarts_per_hour"]))
    self.assertLess(lost[0], lost[1])  # The longer restart.
    self.assertBetween(restarts[1], 5.0, restarts[0])
