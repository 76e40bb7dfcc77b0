"""Reports on runs that trained, and on simulated ones, as one JSON value."""

import csv
import io
import json

from absl.testing import parameterized

from bamboo_jax.accounting import account as account_lib
from bamboo_jax.metrics import rows as rows_lib, table as table_lib
from bamboo_jax.report import contents
from bamboo_jax.sim import loop
from tests import folders, profiles, run_files
from tests.recovery import durations_test
from tests.report.live import facts_test

PRICE = profiles.make_price(3.06, 0.918, instance="small<b>", source="a & b", date="2021")
_MOMENTS = (
    loop.Moment(0.0, 80.0, 8, "none", "", ()),
    loop.Moment(3600.0, 0.0, 6, "checkpoint", "<i>2 nodes</i> lost", ()),
    loop.Moment(4000.0, 60.0, 6, "none", "", (("a", "b"), ("c", "d"))),
)


def outcome(useful=6.0, *, secs=9000.0, moments=_MOMENTS):
  """Returns a simulated run."""
  activity = account_lib.NodeTime(useful=useful, idle=8 - useful) * secs
  totals = account_lib.Account(secs, activity.total, activity, 588_000.0)
  rungs = {"checkpoint": 1}
  return loop.Outcome("p", totals.charge(PRICE), 50, 0.0, 2, 1, rungs, moments)


def report():
  """Returns a report on two simulated runs, with all that there can be."""
  lines = {"ours $a_1$": [[0.01, 2.0, 1.9, 2.2], [0.5, 2.0, None, None]], "b": [[0.01, 1.0, 0, 3]]}
  table = contents.compare(
      "Table",
      [("p = 0.10", 80.0, (82.0, None), ""), ("GPT", None, (1, 2), "OOM")],
      columns=["artifact's rules", "sound rules"],
      source="a talk",
  )
  return contents.make(
      "A <title>",
      [
          contents.simulated(name, outcome(use), "p.json")
          for name, use in (("ours <x>", 6), ("b", 2))
      ],
      remarks=["calibrated & labelled"],
      tables={"talk": table},
      series={"value": contents.series("rate", lines, note="bars: ranges")},
  )


class ContentsTest(folders.FolderCase, parameterized.TestCase):

  def write_run(self, name, *, model="gpt2", **step):
    options = {"options": {"variant": "tiny"}}
    config = {"num_steps": 3, "model": {"name": model} | options, "data": {"name": "text"}}
    config["pipeline"] = {"num_pipelines": 1, "num_stages": 2}
    config["cost"] = {"instance": "p3.2xlarge", "market": "spot"}
    lines = [{"event": "layout", "step": 1, "owners": [[0, 1]], "names": {"0": "n0", "1": "n1"}}]
    lines += [facts_test.step(1), {"event": "recovery"} | durations_test.RECOVERY]
    lines.append(facts_test.step(2, **{"loss": 1.5} | step))
    return run_files.write(self.folder / name, lines, config=config)

  def test_a_simulated_run(self):
    run = contents.simulated("a", outcome())
    curve = [[*point[:1], *point[3:5], point[6]] for point in run["curve"]]
    self.assertEqual([point[1] for point in run["curve"]], [0.0, 3600.0, 4000.0, 9000.0])
    # A point has the means since the one before, and samples until then.
    wanted = [[None, 80.0, 8.0, 0.0], [None, 80.0, 8.0, 288e3], [None, 0.0, 6.0, 288e3]]
    self.assertEqual(curve, [*wanted, [None, 60.0, 6.0, 588e3]])
    self.assertAlmostEqual(run["curve"][-1][5], (8 * 3600 + 6 * 5400) * 0.918 / 3600, places=3)
    figures = run["figures"]
    self.assertEqual(
        [figures[name] for name in ("steps", "layout", "recoveries", "useful_pct")],
        [50, "2 x 2", "1 checkpoint", 75.0],
    )
    (recovery,) = run["recoveries"]
    self.assertEqual((recovery["train_secs"], recovery["rung"]), (3600.0, "checkpoint"))

  def test_a_long_simulation_is_thinned_to_means(self):
    moments = [loop.Moment(float(i), 10.0 * (i % 2), 4, "none", "", ()) for i in range(8000)]
    run = contents.simulated("a", outcome(secs=8000.0, moments=tuple(moments)))
    curve = run["curve"]
    self.assertBetween(len(curve), 500, 1000)
    self.assertAlmostEqual(curve[-1][6], 40_000.0, delta=1.0)
    self.assertTrue(all(4.0 < point[3] < 6.0 for point in curve[1:]))

  def test_runs_are_columns(self):
    table = report()["tables"]["runs"]
    self.assertEqual(table["columns"], ["", "ours <x>", "b"])
    rows = {row[0]: row[1:] for row in table["rows"]}
    self.assertEqual(rows["useful (% of node time)"], [75.0, 25.0])
    self.assertAlmostEqual(rows["$"][0], 8 * 2.5 * 0.918)
    self.assertNotIn("loss", rows)  # No run has one.
    remarks = ["calibrated & labelled", "Nodes: $0.918 an hour for a small<b> (spot; a & b, 2021)."]
    self.assertEqual(report()["remarks"], remarks)

  def test_a_comparison_has_ratios_and_notes(self):
    text = table_lib.to_markdown(report()["tables"]["talk"], 2)
    self.assertIn("| p = 0.10 | 80.00 | 82.00 | 1.025 | – | – |  |", text)
    self.assertIn("| GPT | – | 1.00 | – | 2.00 | – | OOM |", text)
    plain = contents.compare("t", [("a", 1.0, [2.0], "")], columns=["c"], source="s")
    self.assertEqual(plain["columns"], ["", "published", "c", "ratio"])

  def test_runs_that_trained_and_a_simulation(self):
    folder = self.folder / "sim"
    folder.mkdir()
    contents.write(folder, report(), ("png",))
    files = {path.name for path in folder.iterdir()}
    drawn = {"value.png", "node_time.png", "run_b.png"}
    self.assertContainsSubset({"report.html", "report.json", *drawn}, files)
    self.assertEqual(contents.read([folder], {}), json.loads(json.dumps(report())))
    runs = [self.write_run("x/same"), self.write_run("y/same", model="llama", loss=None)]
    found = contents.read([*runs, folder], {})
    names = [run["head"]["run"] for run in found["runs"]]
    self.assertEqual(names, [*map(str, runs), "ours <x>", "b"])
    self.assertContainsSubset({"runs", "sim_talk"}, found["tables"])
    self.assertRegex(" ".join(found["remarks"]), "different models .* gpt2 tiny: .*; llama tiny: ")
    self.assertRegex(" ".join(found["remarks"]), "; p.json: ours <x>, b[.]$")
    rows = {row[0]: row[1:] for row in found["tables"]["runs"]["rows"]}
    self.assertEqual(rows["loss"], [1.5, None, None, None])
    self.assertEqual(rows["state"][0], "its log ends after step 2")
    self.assertEqual(rows["recoveries"][:2], ["1 shadow"] * 2)

  def test_simulations_in_folders_of_one_name(self):
    folders_ = [self.folder / name for name in ("x/sim", "y/sim")]
    for folder in folders_:
      folder.mkdir(parents=True)
      contents.write(folder, report(), ())
    found = contents.read(folders_, {})
    names = [f"{folder}".strip("/").replace("/", "_") for folder in folders_]
    self.assertEqual([*found["series"]], [f"{name}_value" for name in names])
    self.assertEqual([*found["tables"]], ["runs", *(f"{name}_talk" for name in names)])

  def test_figures_of_an_earlier_simulation_are_removed(self):
    (self.folder / "mine.png").touch()
    earlier, later = (contents.make("", [contents.simulated(n, outcome())]) for n in "bc")
    contents.write(self.folder, earlier, ("pdf",))
    contents.write(self.folder, later, ("svg",))
    files = {path.name for path in self.folder.iterdir()}
    drawn = {"report.html", "report.json", "node_time.svg", "run_c.svg"}
    self.assertEqual(files, drawn | {"mine.png"})
    (self.folder / "report.json").write_text("{}")  # Of another version.
    contents.write(self.folder, later, ())

  def test_the_last_step_without_a_death(self):
    run = self.write_run("a")
    (run / "rows").mkdir()
    slots = [rows_lib.TrackSlot("n0", "0F0", "forward", 1.0, 2.0)]
    for steps, expected in (((1, 3), 1), ((3,), 3)):  # A node dies in the third.
      rows_lib.write(
          run / "rows" / "n0.json", [rows_lib.StepRows(step, 0.0, 0.0, slots) for step in steps]
      )
      found = contents.read_run(run, {})["rows"]
      self.assertEqual((found["step"], found["measured"]), (expected, slots))

  def test_charges_replace_those_of_the_config(self):
    run = self.write_run("a")
    usd = lambda **charges: contents.read([run], charges)["runs"][0]["figures"]["cost_usd"]
    self.assertAlmostEqual(usd(instance="p4d.24xlarge", date=None) / usd(), 5.33 / 0.4, places=5)
    self.assertGreater(usd(market="on_demand"), usd())

  @parameterized.parameters(
      ("curve", 4, "run,step,secs,loss,per_sec,nodes,usd,samples"),
      ("recoveries", 1, "run,step,train_secs,rung,text"),
      ("runs", 0, ",ours <x>,b"),
      ("value", 1, "line,rate,value,low,high"),
      ("talk", 0, ",published,artifact's rules,ratio,sound rules,ratio,note"),
  )
  def test_csv(self, name, of_a_run, head):
    text = contents.to_csv(report(), name)
    self.assertEqual(text.splitlines()[0], head)
    rows = [*csv.reader(io.StringIO(text))]
    self.assertEqual(sum(row[0] == "b" for row in rows), of_a_run)
    self.assertLen({len(row) for row in rows}, 1)

  def test_refuses(self):
    run, empty = self.write_run("a"), self.folder / "empty"
    empty.mkdir()
    damaged = []
    for text in ("", "[1]", "{}", json.dumps(contents.make("") | {"runs": [{}]})):
      damaged.append(self.folder / f"damaged_{len(damaged)}")
      damaged[-1].mkdir()
      (damaged[-1] / "report.json").write_text(text)
    for folders_, charges, message in (
        *(([one], {}, f"{one}/report.json is not of this version: sim") for one in damaged),
        ([empty], {}, "no run in .*/empty: it has neither metrics.jsonl nor the report.json"),
        ([run, run], {}, "A folder is given twice"),
        ([run], {"instance": "p3.large"}, "Unknown instance .*'p3.2xlarge'"),
    ):
      with self.assertRaisesRegex(ValueError, message):
        contents.read(folders_, charges)
    with self.assertRaisesRegex(ValueError, "Unknown table 'curv'; did you mean 'curve'"):
      contents.to_csv(report(), "curv")
