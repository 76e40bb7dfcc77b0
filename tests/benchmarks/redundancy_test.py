"""The benchmark of redundancy: predictions, and how results are put."""

import json
import pathlib
import tempfile

from absl.testing import parameterized

from bamboo_jax import config as config_lib
from bamboo_jax.benchmarks import predict, redundancy as case
from bamboo_jax.plan import planner
from bamboo_jax.schedule import redundancy
from tests import profiles


def make_plan(*, num_layers=2, num_microbatches=1):
  """Returns 2 stages of layers with passes of 1 and 2 ms; transfers are free.

  The update of layer `k` takes `k + 1` ms.
  """
  layers = [
      profiles.make_layer(f"layer_{k}", update_ms=k + 1.0, activation_bytes=4, residual_bytes=4)
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
  plan, options = make_plan(**sizes), config_lib.RedundancySection(margin=0.0)
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


class PredictTest(parameterized.TestCase):

  @parameterized.parameters(
      # The slower update; with replicas every node makes both.
      ("none", 6 + 2),
      ("lazy", 6 + 10 + 3),
      ("eager", 6 + 10 + 3),
  )
  def test_step(self, mode, want_ms):
    got_ms = predict.predict_step_ms(make_plan(), make_modes()[mode], refresh_ms=10.0)
    self.assertAlmostEqual(got_ms, want_ms, places=6)

  @parameterized.parameters((2, 6), (4, 10), (16, 34))
  def test_deeper_models(self, num_stages, num_layers):
    plan = make_plan(num_layers=6)
    profile, deep = plan.profile, predict.lengthen(plan, num_stages).profile
    self.assertLen(deep.layers, num_layers)
    self.assertEqual(deep.layers[0], profile.layers[0])
    self.assertEqual(deep.layers[-1], profile.layers[-1])
    self.assertEqual(
        [layer.update_ms for layer in deep.layers[1:-1]], [2.0, 3.0, 4.0, 5.0] * (num_stages // 2)
    )

  def test_sizes(self):
    found = predict.predict_sizes(
        make_plan(num_layers=6, num_microbatches=4),
        redundancy.MODES,
        config_lib.RedundancySection(margin=0.0),
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


class ReportTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    step_ms = dict(none=80.0, lazy=100.0, bubble=101.0, budget=104.0, eager=120)
    self._steps = {
        mode: [make_step(ms), make_step(2 * ms), make_step(ms)] for mode, ms in step_ms.items()
    }
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
                effects={"eager": [redundancy.Effect(9, 0.5, 0.75)] * 4},
                predicted_ms=dict.fromkeys(modes, 100.0) | {"eager": 115.0},
                replica_bytes=dict.fromkeys(modes, 2**20),
            )
        ],
        "sizes": [
            *predict.predict_sizes(
                plan, redundancy.MODES, config_lib.RedundancySection(), sizes=[4]
            )
        ],
    }

  def test_tables(self):
    (eager,) = (r for r in self._report["modes"] if r["mode"] == "eager")
    self.assertAlmostEqual(eager["vote_share"], 0.01)
    lines = case.render(self._report).splitlines()
    for cells in (
        "eager 120.0 115.0 108.0 1.0 1.20 2.0 84.0",
        "eager 9.0 6 50.0% 6.7% 75.0% 75.0%",
        "lazy 0.0 0 0.0% 0.0% 0.0% 0.0%",
        "lazy 1.250 [1.250, 1.250] 1.000 1.000 [1.000, 1.000] 1.000",
        "eager 1.500 [1.500, 1.500] 1.150 1.200 [1.200, 1.200] 1.150 +5.0",
        "4 8 none",
    ):
      found = [l for l in lines if " ".join(l.split()).startswith(cells)]
      self.assertNotEmpty(found, cells)

  def test_files(self):
    out = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    case.write(self._report, self._steps, out)
    found = json.loads((out / "report.json").read_text())
    self.assertEqual(found["modes"][1]["mode"], "lazy")
    counts = {p.name: p.read_text().count("\n") for p in out.glob("*.csv")}
    want = {"steps.csv": 16, "sizes.csv": 6}
    self.assertEqual(counts, want)

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
