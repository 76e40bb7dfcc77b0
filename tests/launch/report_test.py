import contextlib
import json
import pathlib
import shutil
import tempfile

from absl.testing import parameterized

from bamboo_jax.accounting import account as account_lib
from bamboo_jax.configs import default
from bamboo_jax.metrics import jsonl, table as table_lib
from bamboo_jax.report import contents
from tests.launch import commands

_PRICES = """instance,on_demand_usd_per_hour,spot_usd_per_hour,source,date
small,36,3.6,test,2021
large,72,36,test,2021
"""


class ReportTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    folder = self.enterContext(tempfile.TemporaryDirectory())
    self.workdir = pathlib.Path(folder)
    prices = self.workdir / "prices.csv"
    prices.write_text(_PRICES)
    cost = dict(instance="small", market="spot", prices=str(prices))
    cost |= dict(region=None, date=None)
    (self.workdir / "config.json").write_text(
        json.dumps({**default.get_config().to_dict(), "cost": cost})
    )

  def _write_log(self):
    activity = account_lib.NodeTime(useful=2700, bubble=900)
    totals = account_lib.Account(900.0, activity.total, activity, 1800)
    with contextlib.closing(jsonl.MetricsWriter(self.workdir / "metrics.jsonl")) as writer:
      writer.write_step(1, {account_lib.KEY: totals.to_line()})

  def _run(self, *arguments):
    # A process for each, since flags are those of one command.
    return commands.fork("-m", "launch.report", str(self.workdir), *arguments)

  def test_prints(self):
    self._write_log()
    got = self._run()
    self.assertEqual(got.returncode, 0, msg=got.stderr)
    for line in (
        "price | $3.6 an hour for a small (spot; test, 2021)",
        "hours | 0.25",
        "nodes | 4",
        "samples per second | 2",
        "$ | 3.6",
        "$ per hour | 14.4",
        "$ if on demand | 36",
        "value (samples/s per $/h) | 0.13889",
        "$ per million samples | 2000",
        "useful (% of node time) | 75",
        "bubble (% of node time) | 25",
    ):
      self.assertIn(f"| {line} |\n", got.stdout)
    self.assertTrue((self.workdir / "report.html").exists())

  def test_without_a_kind_of_node(self):
    self._write_log()
    cost = dict.fromkeys(("instance", "prices", "region", "date"))
    config = {**default.get_config().to_dict(), "cost": {**cost, "market": "spot"}}
    (self.workdir / "config.json").write_text(json.dumps(config))
    got = self._run()
    self.assertEqual(got.returncode, 0, msg=got.stderr)
    self.assertIn("| useful (% of node time) | 75 |\n", got.stdout)
    self.assertIn("cost: not known; --instance=NAME says what a node is charged as\n", got.stdout)
    self.assertNotIn("$", got.stdout)
    got = self._run("--market=spot")
    self.assertEqual(got.returncode, 2)
    self.assertRegex(got.stderr, r"\Aerror: --\w+ needs a price, .*--instance")
    got = self._run("--instance=p3.2xlarge")
    self.assertEqual(got.returncode, 0, msg=got.stderr)

  @parameterized.named_parameters(
      ("instance", ["--instance=smal"], "did you mean 'small'"),
      ("log", [], "There is no run in .*: it has neither metrics.jsonl"),
      ("prices", ["--prices=nowhere.csv"], "nowhere.csv: No such file"),
  )
  def test_fails_with_one_line(self, arguments, message):
    if arguments:
      self._write_log()
    self._fails(message, *arguments)

  def _fails(self, message, *arguments):
    got = self._run(*arguments)
    self.assertEqual(got.returncode, 2)
    self.assertRegex(got.stderr, rf"\Aerror: .*{message}.*\n\Z")

  def test_a_published_table_without_runs(self):
    table = table_lib.make("t", ["a"], [["figure"]])
    (self.workdir / "report.json").write_text(json.dumps(contents.make("", tables={"t": table})))
    self.assertRegex(self._run().stdout, r"^\| a \|\n.*\n\| figure \|\nreport: .*\n$")

  def test_a_price_of_a_simulation(self):
    (self.workdir / "report.json").write_text("{}")
    self._fails("--instance has no effect on simulations", "--instance=p3.2xlarge")

  def test_whether_runs_end_in_one_state(self):
    runs = []
    for name, state in (("plain", "a"), ("deaths", "a"), ("other", "b")):
      self._write_log()
      folder = self.workdir / name
      folder.mkdir()
      summary = dict(steps=1, final_loss=2.0, samples_seen=12, params_sha256="p")
      summary |= dict(state_sha256=state, resumed_from_step=0)
      summary |= dict(median_step_secs=0.1, bubble_fraction=0.3)
      (folder / "summary.json").write_text(json.dumps(summary))
      for file in ("config.json", "metrics.jsonl"):
        shutil.copy(self.workdir / file, folder)
      runs.append(str(folder))
    page = f"--out={self.workdir / 'both.html'}"
    same = commands.fork("-m", "launch.report", *runs[:2], "--same", page)
    self.assertEqual(same.returncode, 0, same.stderr)
    self.assertIn("deaths: 1 steps, 12 samples, loss 2.0000, 0 recoveries, state_sha", same.stdout)
    self.assertEndsWith(same.stdout, "identical\n")
    other = commands.fork("-m", "launch.report", *runs, "--same", page)
    self.assertEqual(other.returncode, 1)
    self.assertEqual(other.stderr, "different: state_sha256\n")
