import contextlib
import json
import pathlib
import tempfile

from absl.testing import parameterized

from bamboo_jax.accounting import (
    account as account_lib,
    ledger as ledger_lib,
    prices as prices_lib,
    runs,
)
from bamboo_jax.configs import default
from bamboo_jax.metrics import jsonl
from tests.launch import commands

_PRICES = """instance,on_demand_usd_per_hour,spot_usd_per_hour,source,date
small,36,3.6,test,2021
large,72,36,test,2021
"""


class CostTest(parameterized.TestCase):

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
    ledger = ledger_lib.Ledger(prices_lib.load_prices(self.workdir / "prices.csv")[0])
    activity = account_lib.NodeTime(useful=3, bubble=1)
    ledger.add(900.0, activity, num_samples=1800)
    with contextlib.closing(jsonl.MetricsWriter(self.workdir / "metrics.jsonl")) as writer:
      writer.write_step(1, {runs.KEY: ledger.totals().as_dict()})

  def _run(self, *arguments):
    # A process for each, since flags are those of one command.
    return commands.fork("-m", "launch.report", str(self.workdir), *arguments)

  def test_prints(self):
    self._write_log()
    got = self._run()
    self.assertEqual(got.returncode, 0, msg=got.stderr)
    for line in (
        "price: $3.6 an hour for a small (spot; test, 2021)",
        "time: 0.2500 h on 4.00 nodes",
        "samples: 1800, 2 a second",
        "cost: $3.6000, $14.4 an hour (spot $3.6000, on demand $36.0000)",
        "value: 0.1389 samples/s per $/h",
        "dollars per million samples: 2000",
        "  useful       75.00 %",
        "  bubble       25.00 %",
    ):
      self.assertIn(f"{line}\n", got.stdout)

  def test_flags_go_before_the_config(self):
    self._write_log()
    got = self._run("--instance=large", "--market=on_demand")
    self.assertIn("price: $72 an hour for a large (on_demand", got.stdout)
    self.assertIn("cost: $72.0000, $288 an hour", got.stdout)

  def test_without_a_kind_of_node(self):
    self._write_log()
    cost = dict.fromkeys(("instance", "prices", "region", "date"))
    config = {**default.get_config().to_dict(), "cost": {**cost, "market": "spot"}}
    (self.workdir / "config.json").write_text(json.dumps(config))
    got = self._run()
    self.assertEqual(got.returncode, 0, msg=got.stderr)
    self.assertIn("  useful       75.00 %\n", got.stdout)
    self.assertIn("cost: not known; --instance=NAME says what a node is charged as\n", got.stdout)
    self.assertNotIn("$", got.stdout)
    got = self._run("--market=spot")
    self.assertEqual(got.returncode, 2)
    self.assertRegex(got.stderr, r"\Aerror: --\w+ needs a price, .*--instance")
    got = self._run("--instance=p3.2xlarge")
    self.assertEqual(got.returncode, 0, msg=got.stderr)

  @parameterized.named_parameters(
      ("instance", ["--instance=smal"], "did you mean 'small'"),
      ("log", [], "There is no run in .*: no metrics.jsonl"),
      ("prices", ["--prices=nowhere.csv"], "nowhere.csv: No such file"),
  )
  def test_fails_with_one_line(self, arguments, message):
    if arguments:
      self._write_log()
    got = self._run(*arguments)
    self.assertEqual(got.returncode, 2)
    self.assertRegex(got.stderr, rf"\Aerror: .*{message}.*\n\Z")
