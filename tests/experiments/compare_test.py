"""The command that simulates, on a small model and a few nodes."""

import contextlib
import csv
import io
import json
import math
import pathlib
import sys
import tempfile

from absl.testing import parameterized

from bamboo_jax.accounting import account as account_lib
from bamboo_jax.experiments import compare, compare_report, gap, sweep
from bamboo_jax.sim import build
from configs.sim import compare as compare_config
from tests.launch import commands

_EVENTS = """0,add,node1
0,add,node2
0,add,node3
0,add,node4
3600000,remove,node2
7200000,add,node5
"""


def make_config():
  config = compare_config.get_config("quick")
  config.plots = False
  config.workload.transformer.update(num_blocks=3, width=64, sequence_length=32, vocab_size=100)
  config.workload.transformer.flops_per_sec = 1e8
  config.workload.num_stages = 2
  config.workload.num_microbatches = 8
  config.workload.microbatch_size = 1
  config.trace.nodes_per_zone = (3, 3)
  config.trace.hours = 6.0
  config.sweep.values = (0.05, 0.5)
  config.sweep.num_seeds = 2
  return config


def run(config, trace=None, *, quiet=True):
  """Returns the lines of `summary.csv` and the files that are written."""
  workdir = pathlib.Path(tempfile.mkdtemp())
  with contextlib.redirect_stdout(io.StringIO() if quiet else sys.stdout):
    compare.run(config, workdir=workdir, trace=trace, where=sweep.Where(num_processes=1))
  with open(workdir / "summary.csv", encoding="utf-8") as file:
    return list(csv.DictReader(file)), {path.name for path in workdir.iterdir()}


def write_trace(text):
  path = pathlib.Path(tempfile.mkdtemp(), "events.csv")
  path.write_text(text)
  return str(path)


class CompareTest(parameterized.TestCase):

  def test_nodes_of_an_instance(self):
    config = make_config()
    # Its price is not of 2021, and its speeds are not those of the config.
    config.policies = {"on_demand": config.policies.on_demand}
    config.sweep.field = "instance"
    instances = config.sweep.values = ("p4d.24xlarge", "p3.2xlarge")
    fields = ("throughput_samples_per_sec", "usd_per_million_samples")
    found = {}
    for instance in instances:
      config.instance = instance
      rows, _ = run(config)
      for row in rows:
        name = row["setting"] or instance
        found.setdefault(name, set()).add(tuple(row[f] for f in fields))
    (fast,), (slow,) = found["p4d.24xlarge"], found["p3.2xlarge"]
    self.assertGreater(float(fast[0]), 10 * float(slow[0]))

  @parameterized.parameters(
      ({}, "2021", 0.918),
      ({"price_date": "2025"}, "2025", 0.4),
      ({"price_date": ""}, "2025", 0.4),
      ({"instance": "p4d.24xlarge"}, "2025", 5.33),
      ({"instance": "p4d.24xlarge", "price_date": "p4d.24xlarge:2025"}, "2025", 5.33),
      ({"instance": "g4dn.2xlarge"}, "undated", 0.32),
  )
  def test_price(self, changes, date, usd_per_hour):
    config = make_config()
    config.update(changes)
    price = build.make_price(build.place(json.loads(config.to_json())))
    self.assertEqual((price.date, price.spot_usd_per_hour), (date, usd_per_hour))

  def test_a_single_run_has_no_interval(self):
    config = make_config()
    config.policies = {"reconfigure": config.policies.reconfigure}
    one, *several = run(config)[0]
    self.assertEqual((one["value_ci95"], one["throughput_ci95"]), ("", ""))
    for row in several:
      self.assertGreater(float(row["value_ci95"]), 0.0)

  @parameterized.parameters(
      ("trace.hazard_per_node_hour", "preemptions per node and hour"),
      ("durations.boot_secs", "durations.boot (s)"),
      ("workload.memory_limit_gib", "workload.memory_limit (GiB)"),
      ("seed", "seed"),
  )
  def test_labels_have_units(self, field, label):
    self.assertEqual(compare_report.name_field(field), label)

  def test_sweep(self):
    rows, files = run(make_config())
    self.assertEqual(files, {"summary.csv"})
    policies = list(compare_config.get_config().policies)
    count = len(policies)
    self.assertEqual(
        [(row["setting"], row["num_runs"]) for row in rows[::count]],
        [("", "1"), ("0.05", "2"), ("0.5", "2")],
    )
    for i in range(0, 3 * count, count):
      some = rows[i : i + count]
      self.assertCountEqual(policies, [row["policy"] for row in some])
      values = [float(row["value"]) for row in some]
      self.assertEqual(values, sorted(values, reverse=True))
      self.assertIn("0", [row["gap_pct"] for row in some])  # The best has none.
    self.assertLen(rows, 3 * count)
    for row in rows:
      kinds = [float(row[f"{kind}_pct"]) for kind in account_lib.KINDS]
      self.assertAlmostEqual(sum(kinds), 100.0, places=3)
      if row["policy"] == "on_demand":
        self.assertEqual(row["gap_pct"], "")
        continue
      causes = [float(row[f"gap_{cause}_pct"]) for cause in gap.CAUSES]
      self.assertAlmostEqual(sum(causes), float(row["gap_pct"]), places=3)

  def test_the_whole_ladder_is_worth_what_its_parts_are(self):
    rows, _ = run(make_config())
    value = {(r["policy"], r["setting"]): float(r["value"]) for r in rows}
    for policy, setting in value:
      if policy not in ("on_demand", "sample_dropping"):  # No parts of it.
        self.assertGreaterEqual(value["full", setting], 0.999 * value[policy, setting], msg=policy)
    for row in rows:
      if row["policy"] == "full":  # Trace by trace, too.
        self.assertBetween(float(row["worst_gap_pct"]), 0.0, 0.1)
      elif row["policy"] == "checkpoint" and row["num_runs"] == "1":
        ratio = float(row["value"]) / value["full", row["setting"]]
        worst = float(row["worst_gap_pct"])
        self.assertAlmostEqual(worst, 100 * (1 - ratio), places=2)

  def test_file_and_report(self):  # Drawing takes two seconds.
    config = make_config()
    config.plots = True
    config.policies = {"reconfigure": config.policies.reconfigure}
    config.sweep.field = "durations.reconfigure_secs"
    config.sweep.values = (1.0, 100.0)
    rows, files = run(config, write_trace(_EVENTS))
    wanted = {"report.html", "value.png", "node_time.png"}
    self.assertContainsSubset(wanted, files)
    settings = [(row["setting"], row["num_runs"]) for row in rows]
    self.assertEqual(settings, [("", "1"), ("1.0", "1"), ("100.0", "1")])
    fast, slow = (float(row["value"]) for row in rows[1:])
    self.assertGreater(fast, slow)

  def test_a_sweep_of_generated_traces_is_not_played_beside_a_file(self):
    config = make_config()
    with contextlib.redirect_stdout(io.StringIO()) as out:
      rows, _ = run(config, write_trace(_EVENTS), quiet=False)
    self.assertLen(rows, len(config.policies))
    self.assertRegex(
        out.getvalue(),
        "note: --trace=.*events.csv is played alone, without the sweep of "
        "trace.hazard_per_node_hour",
    )

  @parameterized.named_parameters(
      (
          "field",
          {"sweep.field": "trace.hour"},
          "config.sweep.field: Unknown key of config.trace: 'hour'; did you",
      ),
      (
          "nothing_swept",
          {"sweep.field": "trace.hour", "sweep.values": ()},
          "config.sweep.field: Unknown key of config.trace: 'hour'; did you",
      ),
      ("deep", {"sweep.field": "seed.x"}, "Unknown key of config.seed: 'x'"),
      (
          "value",
          {"sweep.values": ("often",)},
          "config.sweep.values must fit config.trace.hazard_per_node_hour",
      ),
      ("costs", {"workload.costs": "guess"}, "Unknown costs 'guess'"),
      ("profile", {"workload.costs": "profile"}, "profile must name a file"),
      ("instance", {"instance": "p3.large"}, "instance in .*prices.csv 'p3"),
      ("trace", {"trace.hours": -1.0}, "hours must be above 0, .* got -1.0"),
      ("hours", {"trace.hours": 1e9}, "hours must be .* up to 87840, got"),
      ("depths", {"policies.full.depths": ()}, "depths must be one or more ab"),
      ("depth", {"policies.full.depths": (0.0,)}, r"above 0, got .*0\.0"),
      ("most", {"policies.full.max_pipelines": 0}, "None or at least 1, got 0"),
      (
          "fail",
          {"policies.full.num_failures": -1},
          "^Policy 'full': num_failures must be at least 0, got -1",
      ),
      ("memory", {"workload.memory_limit_gib": math.nan}, "gib must be above"),
      ("boot", {"durations.boot_secs": math.inf}, "boot_secs must be at least"),
      ("rungs", {"policies.bamboo.rungs": ()}, "rungs must name some of"),
      ("seeds", {"sweep.num_seeds": 0}, "num_seeds must be from 1, got 0"),
      ("plugin", {"plugins": ("nowhere",)}, "plugins: No module named 'now"),
      (
          "date",
          {"instance": "p4d.24xlarge", "price_date": "2021"},
          "Unknown date of p4d.24xlarge in .* '2021'.*Allowed: 2025.",
      ),
      (
          "gpus",
          {"instance": "p5.48xlarge", "workload.of_instance": False},
          "'p5.48xlarge' has 8 GPUs, but config.workload.gpus_per_node is 1",
      ),
      ("bulks", {"trace.bulk_sizes": (3,)}, r"bulk_sizes\[0\] must be an arr"),
      (
          "speed",
          {"workload.transformer.flops_per_sec": 0.0},
          "flops_per_sec must be above 0, got 0.0",
      ),
      ("policy", {"policies.bamboo.layout": "deep"}, "Unknown layout 'deep'"),
      ("none", {"policies": {}}, "config.policies must have"),
      (
          "cluster",
          {"workload.num_stages": 6, "trace.nodes_per_zone": (2,), "trace.zone_correlation": 0.0},
          "cannot start on trace 'generated', which has at most 2 nodes",
      ),
  )
  def test_bad_config(self, changes, message):
    config = make_config()
    if "policies" in changes:  # None of them is left.
      config.policies = changes.pop("policies")
    config.update_from_flattened_dict(changes)
    with self.assertRaisesRegex(ValueError, message):
      run(config)


class CommandTest(parameterized.TestCase):

  # Each starts Python, half a second.
  @parameterized.named_parameters(
      ("no_config", [], "The flag --config is needed"),
      (
          "key",
          ["--config=configs/sim/compare.py", "--config.sed=1"],
          "Unknown key of config: 'sed'; did you mean 'seed'",
      ),
      (
          "experiment",
          ["--config=configs/sim/compare.py", "--config.experiment=compar"],
          "Unknown experiment 'compar'; did you mean 'compare'",
      ),
      (
          "variant",
          ["--config=configs/sim/compare.py:fast"],
          "A variant must be planners, quick or single, got fast",
      ),
      (
          "trace",
          [
              "--config=configs/sim/compare.py",
              f"--trace={write_trace('5,add,a' + chr(10) + '4,add,b')}",
          ],
          "events.csv, line 2: events must be in order of time",
      ),
  )
  def test_one_line(self, arguments, line):
    workdir = f"--workdir={tempfile.mkdtemp()}"
    done = commands.fork("-m", "launch.simulate", workdir, *arguments)
    self.assertEqual(done.returncode, 2, done.stderr)
    self.assertRegex(done.stderr, f"^error: .*{line}.*\n$")
    self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
