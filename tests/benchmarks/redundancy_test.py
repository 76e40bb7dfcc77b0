"""The benchmark of redundancy: deaths, predictions, and how results are put."""

import json
import pathlib
import tempfile

from absl.testing import absltest
from absl.testing import parameterized

from bamboo_jax.benchmarks import deaths as deaths_lib
from bamboo_jax.benchmarks import predict
from bamboo_jax.benchmarks import redundancy as case
from bamboo_jax.plan import planner
from bamboo_jax.plan import rows
from bamboo_jax.schedule import filling as filling_lib
from bamboo_jax.schedule import redundancy
from tests import figures
from tests import profiles


def make_plan(*, num_layers=2, num_microbatches=1):
  """Returns 2 stages of layers with passes of 1 and 2 ms; transfers are free.

  The update of layer `k` takes `k + 1` ms.
  """
  layers = [
      profiles.make_layer(
          f"layer_{k}", update_ms=k + 1.0, activation_bytes=4, residual_bytes=4
      )
      for k in range(num_layers)
  ]
  return planner.make_plan(
      profiles.make_profile(layers),
      num_stages=2,
      num_pipelines=1,
      num_microbatches=num_microbatches,
      microbatch_size=1,
  )


def make_modes(**sizes):
  plan, options = make_plan(**sizes), rows.Redundancy(margin=0.0)
  return {m: predict.plan_mode(plan, options, m) for m in redundancy.MODES}


def make_step(step_ms):
  return dict(
      step_ms=step_ms,
      compute_ms=0.9 * step_ms,
      refresh_ms=1.0,
      vote_ms=0.01 * step_ms,
      apply_ms=2.0,
      cpu_ms=0.7 * step_ms,
      refresh_bytes=2**20,
      host_bytes=2**21,
  )


def make_death(mode, longer_ms, predicted_longer_ms):
  where = dict(mode=mode, victim=0, at=1, before="0B0", num_passes=3)
  times = dict(died_ms=5.0, plan_ms=1.0, planned_died_ms=4.0)
  longer = dict(longer_ms=longer_ms, predicted_longer_ms=predicted_longer_ms)
  return where | times | longer


class DeathsTest(parameterized.TestCase):

  @parameterized.parameters(
      ("lazy", 0, 0, "0F0", "", 0, 0),
      # What was not received is still with its sender; it is not sent again.
      ("lazy", 1, 0, "0RA0<0", "0F0", 1, 0),
      ("lazy", 1, 2, "1B0", "0F0 0SA0>1 0RA0<0 1F0", 2, 1),
      ("lazy", 1, 3, "0SG0>0", "0F0 0SA0>1 0RA0<0 1F0 1B0", 4, 3),
      (
          "lazy",
          0,
          4,
          "end",
          "0F0 0SA0>1 0RA0<0 1F0 1B0 0SG0>0 0RG0<1 0B0",
          6,
          3,
      ),
      # The survivor has run the lost forward pass already.
      ("eager", 1, 3, "1B0", "0F0 0RF0 0SA0>1 1RF0 0RA0<0 1F0", 2, 0),
  )
  def test_death(self, mode, victim, at, before, done, died_ms, longer_ms):
    plan = make_modes()[mode]
    death = deaths_lib.plan_death(plan.whole.timeline, victim=victim, at=at)
    self.assertEqual(death.before, before)
    self.assertEqual(" ".join(str(i) for _, i in death.done), done)
    self.assertAlmostEqual(death.died_ms, died_ms, places=6)
    self.assertAlmostEqual(
        deaths_lib.predict_longer_ms(death, plan), longer_ms, places=6
    )

  def test_spread(self):
    found = deaths_lib.spread_deaths(make_modes()["lazy"], num_deaths=6)
    self.assertEqual([death.victim for death in found], [0] * 6 + [1] * 6)
    # At 0.5, 1.5 and so on; what runs at that time has not been done.
    self.assertEqual(
        [death.before for death in found[6:]],
        ["0RA0<0", "1F0", "1B0", "1B0", "end", "end"],
    )


class PredictTest(parameterized.TestCase):

  @parameterized.parameters(
      # The slower update; with replicas every node makes both.
      ("none", 6 + 2),
      ("lazy", 6 + 10 + 3),
      ("eager", 6 + 10 + 3),
  )
  def test_step(self, mode, want_ms):
    got_ms = predict.predict_step_ms(
        make_plan(), make_modes()[mode], refresh_ms=10.0
    )
    self.assertAlmostEqual(got_ms, want_ms, places=6)

  @parameterized.parameters((2, 6), (4, 10), (16, 34))
  def test_deeper_models(self, num_stages, num_layers):
    plan = make_plan(num_layers=6)
    profile, deep = plan.profile, predict.lengthen(plan, num_stages).profile
    self.assertLen(deep.layers, num_layers)
    self.assertEqual(deep.layers[0], profile.layers[0])
    self.assertEqual(deep.layers[-1], profile.layers[-1])
    self.assertEqual(
        [layer.update_ms for layer in deep.layers[1:-1]],
        [2.0, 3.0, 4.0, 5.0] * (num_stages // 2),
    )

  def test_sizes(self):
    found = predict.predict_sizes(
        make_plan(num_layers=6, num_microbatches=4),
        redundancy.MODES,
        rows.Redundancy(margin=0.0),
        sizes=[4],
    )
    by_mode = {row["mode"]: row for row in found}
    counts = [row["num_microbatches"] for row in by_mode.values()]
    self.assertEqual(counts, [8] * 5)
    self.assertIsNone(by_mode["none"]["pause"])
    self.assertEqual(by_mode["lazy"]["coverage"], 0.0)
    self.assertAlmostEqual(by_mode["bubble"]["overhead"], 0.0)
    self.assertLessEqual(by_mode["budget"]["overhead"], 0.05)
    self.assertLess(by_mode["eager"]["pause"], by_mode["bubble"]["pause"])
    self.assertLess(by_mode["bubble"]["pause"], by_mode["lazy"]["pause"])


class MeasureTest(absltest.TestCase):

  def test_death(self):
    plan = make_modes()["lazy"]
    death = deaths_lib.plan_death(plan.whole.timeline, victim=1, at=2)
    whole = [
        [{"ms": 100.0, "sums": {"0": "a"}}, {"ms": ms, "sums": {"1": "b"}}]
        for ms in (200.0, 300.0, 900.0)
    ]
    survivor = dict(ms=400.0, plan_ms=1.0, num_passes=3)
    victim = {"died_ms": 50.0}
    answers = [survivor | {"sums": {"0": "a", "1": "b"}}, victim]
    found = case.make_death(plan, death, whole, answers)
    self.assertAlmostEqual(found["longer_ms"], 100.0)
    self.assertAlmostEqual(found["predicted_longer_ms"], 1.0)
    self.assertEqual((found["died_ms"], found["before"]), (50.0, "1B0"))
    answers = [survivor | {"sums": {"0": "a", "1": "c"}}, victim]
    with self.assertRaises(AssertionError):
      case.make_death(plan, death, whole, answers)


class ReportTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    step_ms = dict(none=80.0, lazy=100.0, bubble=101.0, budget=104.0, eager=120)
    self._steps = {
        mode: [make_step(ms), make_step(2 * ms), make_step(ms)]
        for mode, ms in step_ms.items()
    }
    longer_ms = dict(lazy=60.0, bubble=54.0, budget=48.0, eager=39.0)
    self._deaths = [
        [
            make_death(mode, scale * ms, 0.5 * ms)
            for mode, ms in longer_ms.items()
            for _ in range(2)
        ]
        for scale in (1.0, 0.9, 1.1)
    ]
    plan = make_plan(num_layers=6, num_microbatches=4)
    modes = make_modes(num_microbatches=4)
    self._report = {
        "partition": (0, 3, 6),
        "options": {"margin": 0.25},
        "refresh_link_ms": 4.0,
        "same_state": True,
        "modes": [
            *case.summarise_modes(
                self._steps,
                modes,
                effects={"eager": [filling_lib.Effect(9, 0.5, 0.75)] * 4},
                predicted_ms=dict.fromkeys(modes, 100.0) | {"eager": 115.0},
                replica_bytes=dict.fromkeys(modes, 2**20),
            )
        ],
        "deaths": case.summarise_deaths(self._deaths),
        "pauses": [*case.compare_pauses(self._deaths)],
        "sizes": [
            *predict.predict_sizes(
                plan, redundancy.MODES, rows.Redundancy(), sizes=[4]
            )
        ],
    }

  def test_tables(self):
    (eager,) = (r for r in self._report["modes"] if r["mode"] == "eager")
    self.assertAlmostEqual(eager["vote_share"], 0.01)
    pauses = [row["mode"] for row in self._report["pauses"]]
    self.assertEqual(pauses, ["lazy", "bubble", "budget", "eager"])
    lines = case.render(self._report).splitlines()
    for cells in (
        "eager 120.0 115.0 108.0 1.0 1.20 2.0 84.0",
        "eager 9.0 8 50.0% 6.7% 75.0% 54.9%",
        "lazy 0.0 0 0.0% 0.0% 0.0% 0.0%",
        "lazy 1.250 [1.250, 1.250] 1.000 1.000 [1.000, 1.000] 1.000",
        "eager 1.500 [1.500, 1.500] 1.150 1.200 [1.200, 1.200] 1.150 +5.0",
        "eager 0 1 0B0 5.0 4.0 39.0 19.5 1.0 3",
        "eager 39.0 19.5 0.650 [0.650, 0.650] 0.650",
        "4 8 none",
    ):
      found = [l for l in lines if " ".join(l.split()).startswith(cells)]
      self.assertNotEmpty(found, cells)

  def test_files(self):
    # Drawing takes the time of an import of matplotlib.
    out = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    case.write(self._report, self._steps, self._deaths, out)
    found = json.loads((out / "report.json").read_text())
    self.assertEqual(found["pauses"][0]["mode"], "lazy")
    counts = {p.name: p.read_text().count("\n") for p in out.glob("*.csv")}
    want = {"steps.csv": 16, "deaths.csv": 25, "sizes.csv": 6}
    self.assertEqual(counts, want)
    png = (out / "overhead_pause.png").read_bytes()
    self.assertStartsWith(png, b"\x89PNG")

  def test_figure(self):
    points = {
        mode: ((0.02 * i, 5.0 * i), (0.02 * i, 5.1 * i))
        for i, mode in enumerate(("lazy", "bubble", "eager"))
    }
    fig = case.draw_modes(points)
    self.assertEmpty(figures.find_faults(fig))
    (axes,) = fig.axes
    self.assertIn("(%)", axes.get_xlabel())
    self.assertIn("(ms)", axes.get_ylabel())

  @parameterized.parameters(
      ("a", "b", "a", "b", True),
      ("a", "b", "x", "b", False),  # A replica differs from its owner.
      ("a", "x", "a", "b", False),
  )
  def test_one_state(self, own_0, replica_1, replica_0, own_1, want):
    digests = [
        {"none": {"0": own_0}, "lazy": {"0": own_0, "1": replica_1}},
        {"none": {"1": own_1}, "lazy": {"0": replica_0, "1": own_1}},
    ]
    self.assertEqual(case.is_one_state(digests), want)
