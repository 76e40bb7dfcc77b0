import json
import pathlib

from absl.testing import parameterized

from bamboo_jax.accounting import account as account_lib
from bamboo_jax.configs import default
from bamboo_jax.metrics import table as table_lib
from bamboo_jax.report import contents
from tests import folders, run_files
from tests.launch import commands

_PRICES = """instance,on_demand_usd_per_hour,spot_usd_per_hour,source,date
small,36,3.6,test,2021
large,72,36,test,2021
"""


class ReportTest(folders.FolderCase):

  def write_run(self, name, has_price=True, **summary):
    """Returns the folder of a run of a quarter of an hour on four nodes, as an argument."""
    config, prices = default.get_config(), self.folder / "prices.csv"
    prices.write_text(_PRICES)
    if has_price:
      config.cost.update(instance="small", market="spot", prices=str(prices))
    activity = account_lib.NodeTime(useful=2700, bubble=900)
    totals = account_lib.Account(900.0, activity.total, activity, 1800)
    line = {"step": 1, account_lib.KEY: totals.to_line()}
    files = {"config": config.to_dict()} | ({"summary": summary} if summary else {})
    return str(run_files.write(self.folder / name, [line], **files))

  def run_command(self, *arguments, code=0):
    """Runs a command in a new process, because flags are global; returns its output."""
    got = commands.fork("-m", "launch.report", *arguments)
    self.assertEqual(got.returncode, code, msg=got.stderr)
    return got.stdout + got.stderr

  def test_prints(self):
    said = self.run_command(self.write_run("a"))
    for line in (
        "price | $3.6 an hour for a small (spot; test, 2021)",
        "$ per hour | 14.4",
        "useful (% of node time) | 75",
    ):
      self.assertIn(f"| {line} |\n", said)
    self.assertTrue((self.folder / "a" / "report.html").exists())

  def test_without_a_kind_of_node(self):
    workdir = self.write_run("a", has_price=False)
    said = self.run_command(workdir)
    self.assertIn("| useful (% of node time) | 75 |\n", said)
    self.assertIn("cost: not known; --instance=NAME says what a node is charged as\n", said)
    self.assertNotIn("$", said)
    said = self.run_command(workdir, "--market=spot", code=2)
    self.assertRegex(said, r"\Aerror: --\w+ needs a price, .*--instance")
    self.assertIn("$", self.run_command(workdir, "--instance=p3.2xlarge"))

  @parameterized.parameters(
      ("--instance=smal", "did you mean 'small'"),
      ("--prices=nowhere.csv", "nowhere.csv: No such file"),
  )
  def test_fails_with_one_line(self, argument, message):
    said = self.run_command(self.write_run("a"), argument, code=2)
    self.assertRegex(said, rf"\Aerror: .*{message}.*\n\Z")

  def test_a_damaged_config(self):
    folder = pathlib.Path(self.write_run("a"))
    (folder / "config.json").write_text("[]")
    said = self.run_command(str(folder), code=2)
    self.assertRegex(said, r"\Aerror: .*a/config.json is not the config of a run")

  def test_a_report_without_runs(self):
    """A published table; a price is for runs."""
    table = table_lib.make("t", ["a"], [["figure"]])
    (self.folder / "report.json").write_text(json.dumps(contents.make("", tables={"t": table})))
    said = self.run_command(str(self.folder))
    self.assertRegex(said, r"^\| a \|\n.*\n\| figure \|\nreport: .*\n$")
    said = self.run_command(str(self.folder), "--instance=p3.2xlarge", code=2)
    self.assertIn("--instance has no effect on simulations", said)

  def test_whether_runs_end_in_one_state(self):
    plain, deaths, other = (
        self.write_run(name, **run_files.SUMMARY | {"state_sha256": state})
        for name, state in ("a5", "b5", "c6")
    )
    page = f"--out={self.folder}/both.html"
    said = self.run_command(plain, deaths, "--same", page)
    self.assertIn("b: 3 steps, 12 samples, loss 2.5000, 0 recoveries, state_sha", said)
    self.assertEndsWith(said, "identical\n")
    said = self.run_command(plain, deaths, other, "--same", page, code=1)
    self.assertEndsWith(said, "different: state_sha256\n")
    pathlib.Path(other, "summary.json").unlink()
    said = self.run_command(plain, other, "--same", page, code=2)
    self.assertRegex(said, r"\Aerror: The run in .*c has no last state: it has not ended, or is ")
