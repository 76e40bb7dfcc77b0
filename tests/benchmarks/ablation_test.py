"""Ablations: which runs they make, and what is told of them."""

import csv
import itertools
from unittest import mock

from absl.testing import parameterized

from bamboo_jax import config
from bamboo_jax.benchmarks import ablation
from tests import figures, folders, run_files


def write_run(folder, *, step_ms, pauses=(), state="a"):
  """Writes what `bamboo train` leaves of a run of three steps."""
  summary = run_files.SUMMARY | dict(state_sha256=state, samples_dropped=3)
  summary["recoveries"] = [{"kill_to_step_end_secs": p} for p in pauses]
  summary["cost"] = {"num_samples": 12.0, "cost_usd": 0.5}
  lines = [{"step": 0, "event": event} for event in ("start", "recovery", "start")]
  lines += [{"step": 1, "event": "recovery"} for _ in pauses]
  for step, ms in enumerate((9_000.0, *step_ms), 1):
    line = dict(step=step, step_ms=ms, tokens_per_sec=1.0, bubble_pct=30.0)
    account = dict(secs=9.0 + 2.0 * step, num_samples=4.0 * step)
    line["account"] = account | {"node_secs": 0.0, "parts": {}}
    lines.append(line)
  run_files.write(folder, lines, summary=summary)


def make_rows(sweeps=None, num_repeats=1):
  """Returns rows of runs in which some metrics differ."""
  rows = []
  sweeps = sweeps or {"seed": ["1", "2"]}
  for values in itertools.product(*sweeps.values()):
    for repeat in range(num_repeats):
      row = dict.fromkeys(ablation.METRICS)
      k = len(rows)
      row |= dict(step_ms=300.0 + k, bubble_pct=30.0 - k, final_loss=2.5)
      row |= dict(samples=12.0, samples_per_wall_sec=5.0 + k % 3, usd=0.5)
      rows.append({**dict(zip(sweeps, values, strict=True)), "repeat": repeat, **row})
  return rows


class SweepTest(parameterized.TestCase):

  def test_parse(self):
    texts = ["recovery.fold=true,None", "seed=1", "model.options.b=(1,2),[3,4],x", "trace=a=b"]
    self.assertEqual(
        ablation.read_sweeps(texts, ["trace"]),
        {
            "recovery.fold": {"true": True, "None": None},
            "seed": {"1": 1},
            "model.options.b": {"(1,2)": (1, 2), "[3,4]": [3, 4], "x": "x"},
            "trace": {"a=b": "a=b"},
        },
    )
    for text in ("seed", "=1", "seed=", "seed=1,,2", "seed=1,1", "seed=1,1.0"):
      with self.assertRaisesRegex(ValueError, f"--sweep={text}"):
        ablation.read_sweeps([text])
    for texts, message in (
        (["seed=1", "seed=2"], "names seed twice"),
        (["trace=a"], "config.trace is gone"),
    ):
      with self.assertRaisesRegex(ValueError, message):
        ablation.read_sweeps(texts)

  def test_trials_are_all_combinations_in_each_repeat(self):
    trials = ablation.plan_trials({"a": ["1", "2"], "b": ["x", "y"]}, repeats=3)
    self.assertLen(trials, 12)
    self.assertLen({trial.folder for trial in trials}, 12)
    orders = []
    for repeat in range(3):
      part = trials[4 * repeat : 4 * repeat + 4]
      self.assertEqual({trial.repeat for trial in part}, {repeat})
      self.assertLen({trial.setting for trial in part}, 4)
      orders.append(tuple(trial.setting for trial in part))
    self.assertGreater(len(set(orders)), 1)

  def test_files_are_flags_and_folders_have_no_odd_characters(self):
    trial = ablation.Trial((("trace", "a/b c.csv"), ("seed", "1")), 1, "m", ("--x",), "w")
    folder = "w/trace=a_b_c.csv,seed=1/1"
    self.assertEqual(
        trial.command[1:],
        ["-m", "m", "--x", "--trace=a/b c.csv", "--config.seed=1", f"--workdir={folder}"],
    )
    self.assertEqual(str(trial.folder), folder)


class DifferencesTest(parameterized.TestCase):

  def test_pairs_are_of_the_same_seed(self):
    sweeps = {"seed": ["1", "2"], "mode": ["a", "b"]}
    runs = (("1", "a", 1.0), ("1", "b", 1.5), ("2", "a", 7.0), ("2", "b", 7.25))
    unknown = dict.fromkeys(ablation.METRICS) | {"repeat": 0}
    rows = [unknown | dict(seed=seed, mode=mode, final_loss=loss) for seed, mode, loss in runs]
    (got,) = ablation.subtract(rows, sweeps)
    self.assertEqual((got["mode"], got["minus"], got["pairs"]), ("b", "a", 2))
    self.assertEqual(got["final_loss"], 0.375)
    # 12.706 * 0.17678 / sqrt(2), and not that of seeds that differ by 6.
    self.assertAlmostEqual(got["final_loss_ci95"], 12.7062 * 0.125, places=4)
    (got,) = ablation.subtract(rows[1:], sweeps)  # Not done yet.
    self.assertEqual((got["final_loss"], got["pairs"]), (0.25, 1))
    self.assertIsNone(got["final_loss_ci95"])
    self.assertEmpty(ablation.subtract(rows, {"seed": ["1", "2"]}))


class ResultsTest(folders.FolderCase):

  def test_a_run_with_other_options_does_not_go_on(self):
    calls = self.enterContext(mock.patch.object(ablation.interleave, "call"))
    trial = ablation.Trial((("seed", "1"),), 0, "train", ("--config=a",), str(self.folder))
    write_run(trial.folder, step_ms=(1.0, 1.0))
    row = ablation.run_trial(trial)
    again = trial._replace(arguments=("--config=a", "--program_cache=b"))
    self.assertEqual(ablation.run_trial(again), row)
    for changes in ({"arguments": ("--config=a", "--faults=c")}, {"inputs": "b"}):
      with self.assertRaisesRegex(ValueError, "seed=1/0 has a run with other options, files"):
        ablation.run_trial(trial._replace(**changes))
    self.assertEqual(calls.call_count, 2)

  def test_inputs_are_config_code_and_files(self):
    code, faults = self.folder / "mine.py", self.folder / "f.csv"
    options, found = config.Config().changed({"model.name": f"{code}:model"}), []
    trial = ablation.Trial((("faults", f"{faults}"),), 0)
    for num_steps, texts in ((1, "ab"), (1, "ab"), (2, "ab"), (1, "cb"), (1, "ad")):
      for file, text in zip((code, faults), texts, strict=True):
        file.write_text(text)
      job = options.changed({"num_steps": num_steps})
      found.append(ablation.digest_inputs(job, trial, [None]))
    self.assertEqual(found[0], found[1])
    self.assertLen({*found}, 4)

  def test_means_over_repeats(self):
    root, rows = self.folder, []
    for mode, times, pauses, states in (
        ("none", (100.0, 110.0), (), "aa"),
        ("eager", (130.0, 150.0), (0.2, 0.4), "ab"),
    ):
      for repeat, (ms, state) in enumerate(zip(times, states, strict=True)):
        trial = ablation.Trial((("mode", mode),), repeat, workdir=str(root))
        write_run(trial.folder, step_ms=(ms, ms), pauses=pauses, state=state)
        rows.append(ablation.read_row(trial))
    sweeps = {"mode": ["none", "eager"]}
    ablation.write_tables(root, rows, sweeps)
    none, eager = ablation.summarise(rows, list(sweeps))
    (minus,) = ablation.subtract(rows, sweeps)
    self.assertEqual(none["step_ms"], 105.0)  # Without the first step.
    # Student's t: 12.706 for one degree of freedom.
    self.assertAlmostEqual(none["step_ms_ci95"], 12.706 * 5.0, places=1)
    self.assertIsNone(none["pause_ms"])
    self.assertEqual((none["usd"], none["samples"]), (0.5, 12.0))
    self.assertEqual((none["samples_per_wall_sec"], none["samples_dropped"]), (2, 3))
    self.assertEqual((none["same_state"], eager["same_state"]), ("yes", "no"))
    self.assertAlmostEqual(eager["pause_ms"], 300.0)
    self.assertEqual(eager["num_recoveries"], 3)  # One before it was resumed.
    with (root / "runs.csv").open() as file:
      read = list(csv.DictReader(file))
    self.assertEqual([r["mode"] for r in read], ["none"] * 2 + ["eager"] * 2)
    self.assertEqual(read[0]["pause_ms"], "")
    self.assertIsNone(minus["pause_ms"])
    text = (root / "differences.md").read_text()
    self.assertStartsWith(text, "| mode | minus | pairs | step_ms |")
    self.assertIn("| eager | none | 2 | 35 ± 64 |", text)
    text = (root / "means.tex").read_text()
    self.assertIn(r"eager & 2 & 140 $\pm$ 1.3e+02 &", text)
    self.assertTrue((root / "differences.csv").exists())

  @parameterized.parameters(1, 3)
  def test_figure(self, num_repeats):
    sweeps = {"a.mode": ["none", "lazy $x$"], "a.long_name_of_a_field": ["1", "2"]}
    rows = make_rows(sweeps, num_repeats)
    fig = ablation.draw(rows, sweeps)
    shown = [axes for axes in fig.axes if axes.axison]
    # Without metrics that are the same in all runs, or that nobody has.
    self.assertEqual(
        [axes.get_xlabel() for axes in shown],
        ["time of a step (ms)", "bubble (%)", "samples/s of wall time"],
    )
    self.assertEqual(
        fig.get_supxlabel().replace("\n", " "),
        "The same in all runs: final loss (nats per token): 2.5; samples: 12; " r"cost (\$): 0.5.",
    )
    settings = [label.get_text() for label in shown[0].get_yticklabels()]
    self.assertEqual(settings, ["none, 1", "none, 2", r"lazy \$x\$, 1", r"lazy \$x\$, 2"])
    self.assertEqual(shown[0].get_title(loc="left"), "a.mode, a.long_name_of_a_field")
    for axes in shown:  # A bar for each setting, but not of a single run.
      self.assertLen(axes.collections, 4 * (num_repeats > 1))
    self.assertLen(fig.legends, num_repeats > 1)
    self.assertEmpty(figures.find_faults(fig))

  def test_figure_leaves_out_what_is_constant_or_far(self):
    sweeps = {"mode": ["none", "lazy"], "faults": ["a.csv"]}
    rows = make_rows(sweeps, 2)
    first = ablation.draw(rows, sweeps).axes[0]
    self.assertEqual([label.get_text() for label in first.get_yticklabels()], ["none", "lazy"])
    steps = [row["step_ms"] for row in rows]
    margin = 0.51 * (max(steps) - min(steps))  # Not the interval of two runs.
    self.assertGreater(first.get_xlim()[0], min(steps) - margin)
    self.assertLess(first.get_xlim()[1], max(steps) + margin)

  def test_the_speed_of_a_single_step_is_not_known(self):
    trial = ablation.Trial((), 0, workdir=str(self.folder))
    write_run(trial.folder, step_ms=(), pauses=(None,), state="a")
    row = ablation.read_row(trial)
    for name in ("samples_per_wall_sec", "step_ms", "pause_ms"):
      self.assertIsNone(row[name])
    [mean] = ablation.summarise([row | {"step_ms": 5.0}], [])
    self.assertEqual((mean["step_ms"], mean["step_ms_ci95"]), (5.0, None))  # Of one run.
