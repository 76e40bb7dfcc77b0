"""The command that simulates, on a small model and a few nodes."""

import csv
import pathlib
import tempfile

from absl.testing import parameterized

from bamboo_jax import config as config_lib
from bamboo_jax.accounting import account as account_lib
from bamboo_jax.experiments import compare, sweep as sweep_lib
from bamboo_jax.plan import cost_model
from bamboo_jax.training.setup import accept
from configs.sim import compare as compare_config
from tests import folders, profiles, tables, tiny
from tests.launch import commands

_EVENTS = """0,add,node1
0,add,node2
0,add,node3
0,add,node4
3600000,remove,node2
7200000,add,node5
"""


# Arguments of `bamboo simulate`, and the error.
_MISTAKES = r"""
--config.sed=1
  Unknown key of config: 'sed'; did you mean 'seed'
--policies=oobleck,varunna
  Unknown policy 'varunna'; did you mean 'varuna'
--table=ooblek
  Unknown table 'ooblek'; did you mean 'oobleck'
--table=oobleck:GPT3
  Unknown model 'GPT3'
--table=oobleck --seeds=2
  --seeds has no effect with --table=oobleck, wh
--table=oobleck --policies=full
  --policies has no effect with --table
--config=sim/compare:fast
  A variant must be quick or single, got fast
--trace={trace}
  events.csv, line 1: Unknown kind .*'ad'
--trace=ec3
  Unknown trace 'ec3'; did you mean 'ec2'
--sweep=seed
  --sweep=seed must be a field of the config and its values
--sweep=recovery.policy=bamboo
  policies as --policies=A,B
--config.workload.name=a
  config.workload is gone: config.model, config.pi
--policies=
  --policies must have a value, got ''
--policies=own,own
  --policies=own,own must name each policy once
--policies=oobleck --config.pipeline.layout=grid
  --config.pipeline.layout has no effect with --policies=oobleck, which sets it
--policies=oobleck,bamboo --sweep=cost.market=spot,on_demand
  --sweep=cost.market has no effect with --policies=oobleck,bamboo, which set it
--config.cost.prices=no.csv
  config.cost.prices='no.csv' cannot be read: No
--beside=no_run
  no run of `bamboo cluster` in no_run: no nodes.jsonl
--config.study.table.rows=a=b
  rows has no effect without config.study.ta
--config.model.name=llama
  model.name has no effect with config.plan.pro
--sweep=model.name=gpt2,llama
  model.name has no effect with config.plan
--trace=ec2 --config.seed=2
  --config.seed has no effect with --trace
--trace=ec2,ec2
  ec2.csv and .*ec2.csv: node 'node.*' is added twice
"""
_POLICIES = (
    "on_demand+grid",
    "checkpoint+grid",
    "sample_dropping+grid",
    "bamboo+grid",
    "oobleck+grid",
    "recycle+grid",
    "full_with_shadows+grid",
    "full+grid",
)
_SWEEP = compare.Sweep(values=(0.05, 0.5), num_seeds=2)
_COSTS = profiles.make_transformer(num_blocks=3, flops_per_sec=1e8, link_bytes_per_sec=1.25e9)


def get_config(folder=None):
  """Returns the config of a small model and a few nodes; `folder` is for its profile."""
  folder = folder or pathlib.Path(tempfile.mkdtemp())
  (folder / "profile.json").write_text(cost_model.to_json(_COSTS))
  config = compare_config.get_config("quick")
  config.metrics.plots = False
  config.plan.profile = str(folder / "profile.json")
  config.pipeline.update(num_stages=2, num_pipelines=1, num_microbatches=8, microbatch_size=1)
  config.study.trace.update(nodes_per_zone=(3, 3), hours=6.0)
  return config


def run(changes=None, *, policies=_POLICIES, sweep=_SWEEP, trace=()):
  """Returns the lines of `summary.csv` and the files that are written."""
  workdir = pathlib.Path(tempfile.mkdtemp())
  config = accept.accept(get_config(), is_study=True).changed(changes or {})
  compare.run(
      config,
      policies,
      workdir=workdir,
      preemptions=compare.Preemptions(trace),
      sweep=sweep,
      where=sweep_lib.Where(num_processes=1),
  )
  with open(workdir / "summary.csv", encoding="utf-8") as file:
    return list(csv.DictReader(file)), {path.name for path in workdir.iterdir()}


def write_trace(text):
  path = pathlib.Path(tempfile.mkdtemp(), "events.csv")
  path.write_text(text)
  return str(path)


class CompareTest(parameterized.TestCase):

  def test_a_run_that_only_starts(self):
    changes = {"study.trace.hours": 0.001}
    (row,), _ = run(changes, policies=("checkpoint",), sweep=compare.Sweep())
    names = ("throughput_samples_per_sec", "usd_per_million_samples", "restarts_per_hour")
    self.assertEqual([row[name] for name in names], ["0", "", "0"])

  def test_settings_as_they_are_given(self):
    sweep = compare.Sweep("study.trace.nodes_per_zone", ([2, 3], (3, 3)), num_seeds=1)
    rows, _ = run({"study.trace.hours": 0.01}, policies=("checkpoint",), sweep=sweep)
    self.assertEqual([row["setting"] for row in rows], ["", "[2, 3]", "(3, 3)"])

  def test_labels_have_units(self):
    for field, label in (
        ("study.trace.hazard_per_node_hour", "preemptions per node and hour"),
        ("study.durations.boot_secs", "study.durations.boot (s)"),
        ("plan.memory_limit_gib", "plan.memory_limit (GiB)"),
        ("seed", "seed"),
    ):
      self.assertEqual(compare.name_field(field), label)

  def test_sweep(self):
    rows, files = run()
    self.assertEqual(files, {"summary.csv", "report.html", "report.json"})
    policies, count = _POLICIES, len(_POLICIES)
    for i, row in enumerate(rows):  # A single run has no interval.
      intervals = [row[f"{name}_ci95"] for name in ("value", "throughput_samples_per_sec")]
      self.assertEqual([bool(text) for text in intervals], [i >= count] * 2)
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
      if row["policy"] == "on_demand+grid":
        self.assertEqual((row["gap_pct"], row["restarts_per_hour"]), ("", "0"))  # It only starts.
        continue
      causes = [float(row[f"gap_{cause}_pct"]) for cause in compare.CAUSES]
      self.assertAlmostEqual(sum(causes), float(row["gap_pct"]), places=3)
    self.check_parts(rows)

  def check_parts(self, rows):
    """The whole ladder is worth what its parts are."""
    value = {(r["policy"], r["setting"]): float(r["value"]) for r in rows}
    for policy, setting in value:
      if policy not in ("on_demand+grid", "sample_dropping+grid"):  # No parts of it.
        best = value["full+grid", setting]
        self.assertGreaterEqual(best, 0.999 * value[policy, setting], msg=policy)
    for row in rows:
      if row["policy"] == "full+grid":  # Trace by trace, too.
        self.assertBetween(float(row["worst_gap_pct"]), 0.0, 0.1)
      elif row["policy"] == "checkpoint+grid" and row["num_runs"] == "1":
        ratio = float(row["value"]) / value["full+grid", row["setting"]]
        worst = float(row["worst_gap_pct"])
        self.assertAlmostEqual(worst, 100 * (1 - ratio), places=2)

  def test_file_and_report(self):  # Drawing takes two seconds.
    rows, files = run(
        {"metrics.plots": True},
        policies=("oobleck+grid",),
        sweep=compare.Sweep("study.durations.reconfigure_secs", (1.0, 100.0)),
        trace=(write_trace(_EVENTS),),
    )
    wanted = {"report.html", "value.png", "node_time.png"}
    self.assertContainsSubset(wanted, files)
    settings = [(row["setting"], row["num_runs"]) for row in rows]
    self.assertEqual(settings, [("", "1"), ("1.0", "1"), ("100.0", "1")])
    fast, slow = (float(row["value"]) for row in rows[1:])
    self.assertGreater(fast, slow)

  def test_the_model_of_a_config_is_estimated(self):  # Imports JAX and traces, 2 s.
    config = tiny.get_config()
    costs = compare.find_costs(accept.accept(config))
    self.assertFalse(costs.measured)

  @parameterized.named_parameters(
      ("field", compare.Sweep("study.trace.hour", (1,)), "'hour'; did you mean 'hours'"),
      ("deep", compare.Sweep("seed.x", (1,)), "seed"),
      ("value", compare.Sweep(values=("often",)), "hazard_per_node_hour must be float"),
      ("negative", compare.Sweep("study.trace.hours", (-1.0,)), "hours must be above 0"),
      ("price", compare.Sweep("cost.instance", ("p3.2xlarge", "no")), "Unknown instance .*'no'"),
      ("stages", compare.Sweep("pipeline.num_stages", (2, 999)), "num_stages"),
      ("seed", compare.Sweep("seed", (1, 2)), "--sweep=seed .* no effect with --trace", _EVENTS),
      ("of_a_trace", _SWEEP, "--sweep=study.trace.* has no effect with --trace", _EVENTS),
  )
  def test_bad_sweep(self, sweep, message, events=None):
    trace = (write_trace(events),) if events else ()
    with folders.printed() as out:
      with self.assertRaisesRegex(ValueError, message):
        run(sweep=sweep, policies=("checkpoint", "bamboo"), trace=trace)
    self.assertNotIn("run=", out.getvalue())  # All values are checked first.

  @parameterized.named_parameters(
      ("profile", {"plan.profile": "no.json"}, "no.json"),
      ("file", {"study.table.file": "no.csv"}, "no.csv"),
      (
          "cluster",
          {
              "pipeline.num_stages": 6,
              "recovery.fold": False,
              "study.trace": config_lib.TraceSection(nodes_per_zone=(2,)),
          },
          "cannot start on trace 'generated', which has at most 2 nodes",
      ),
  )
  def test_bad_config(self, changes, message):
    with self.assertRaisesRegex((ValueError, OSError), message):
      run(changes, policies=("own",), sweep=compare.Sweep())


def make_account(num_samples, **parts):
  return account_lib.Account(
      100.0, 100.0, account_lib.NodeTime(**parts), num_samples, profiles.PRICE
  )


class GapTest(parameterized.TestCase):

  @parameterized.named_parameters(
      # A tenth of the time that the best trains in is lost.
      ("lost", 720, dict(useful=72, bubble=18, lost=10), {"lost": 10.0}),
      ("idle", 400, dict(useful=40, bubble=10, idle=50), {"idle": 50.0}),
      ("pauses", 640, dict(useful=64, bubble=16, recovery=5, restart=15), {"pauses": 20.0}),
      ("saves", 640, dict(useful=64, bubble=16, checkpoint=20), {"pauses": 20.0}),
      ("layout", 600, dict(useful=60, bubble=40), {"layout": 25.0}),
      ("redundancy", 600, dict(useful=60, bubble=15, redundant=25), {"redundancy": 25.0}),
      ("in_bubbles", 800, dict(useful=80, redundant=20), {"layout": -25.0, "redundancy": 25.0}),
  )
  def test_one_cause(self, num_samples, parts, expected):
    best = make_account(800, useful=80, bubble=20)
    mine = make_account(num_samples, **parts)
    got = compare.split_gap(mine, best)
    self.assertAlmostEqual(sum(got.values()), 100 * (1 - num_samples / 800))
    for cause in compare.CAUSES:
      self.assertAlmostEqual(got[cause], expected.get(cause, 0.0), msg=cause)

  def test_a_run_that_never_trained(self):
    best = make_account(800, useful=80, bubble=20)
    self.assertIsNone(compare.mean_gap([make_account(0, idle=100)], [best]))


class CommandTest(parameterized.TestCase):

  # Each starts Python, half a second.
  @parameterized.parameters(*tables.read(_MISTAKES))
  def test_one_line(self, arguments, line):
    workdir = f"--workdir={tempfile.mkdtemp()}"
    given = arguments.format(trace=write_trace("4,ad,b")).split()
    done = commands.fork("-m", "launch.simulate", workdir, *given)
    self.assertEqual(done.returncode, 2, done.stderr)
    self.assertRegex(done.stderr, f"^error: .*{line}.*\n$")
    self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
