"""Deaths of a bench of shapes, and what is made of the log of its run."""

from absl.testing import absltest

from bamboo_jax import config as config_lib
from bamboo_jax.benchmarks import shape
from bamboo_jax.sim import speed as speed_lib
from tests import layouts


def plan(mode):
  rules = layouts.make_rules(2, 2, mode=mode, layer_secs=1.0)
  speed = speed_lib.ProfileSpeed(
      layouts.make_profile(2, layer_secs=1.0),
      num_microbatches=8,
      microbatch_size=1,
      redundant=config_lib.RedundancySection(mode),
  )
  first = rules.start(rules.planner.fresh(range(4), {}))
  return [*shape.plan_losses(rules, first, speed)]


class ShapeTest(absltest.TestCase):

  def test_nodes_die_as_long_as_all_layers_have_copies(self):
    for mode, numbers in (("lazy", [4, 3, 2, 1]), ("none", [4, 3, 2])):
      losses = plan(mode)
      self.assertEqual([len(l.layout.nodes) for l in losses], numbers, mode)
      for before, after in zip(losses, losses[1:], strict=False):
        self.assertIn(after.victim, before.layout.nodes)
        self.assertNotIn(after.victim, after.layout.nodes)
        self.assertGreater(after.death_ms, before.step_ms)
        self.assertGreaterEqual(after.step_ms, before.step_ms)

  def test_rows(self):
    losses = plan("none")[:2]  # One death.
    lines, secs = [], 0.0
    # Six steps before the death, the step with it, a pause, three later ones.
    for step, ms in enumerate([9, 9, 9, 30, 31, 32, 80, 62, 50, 60], 1):
      secs += (ms + 7 * (step == 8)) / 1e3
      if step in (1, 8):
        row = losses[step == 8].layout.roles
        owners = [list(r.owners) for r in row]
        lines.append({"step": step, "event": "layout", "owners": owners})
      account = {"secs": secs}
      lines.append({"step": step, "step_ms": ms, "account": account})
    (row,) = shape.measure(losses, lines)
    self.assertEqual((row["num_nodes"], row["num_lost"]), (4, 1))
    self.assertEqual((row["stages"], row["step_ms"]), ("2+2", 60))
    self.assertAlmostEqual(row["ideal_ms"], 31 * 4 / 3)
    self.assertAlmostEqual(row["ratio"], 31 * 4 / 3 / 60)
    self.assertAlmostEqual(row["death_ratio"], 31 * 4 / 3 / 80)
    self.assertAlmostEqual(row["pause_ms"], 7.0)
    want = losses[0].step_ms * 4 / 3 / losses[1].step_ms
    self.assertAlmostEqual(row["predicted_ratio"], want)
