"""Histories that are drawn, in each mode, a case for each seed.

Each takes a tenth of a second, in some modes a second.
"""

from absl.testing import parameterized

from bamboo_jax.testing.simulation import history, plans
from tests import samples

_CASES = [
    (f"{mode}_{seed}", mode, seed)
    for mode in sorted(plans.MODES)
    for num_seeds in [10 if mode == "train" else 40]  # It is the slowest.
    for seed in samples.draw(range(num_seeds), num_seeds // 4, topic=mode)
]


class SeedsTest(parameterized.TestCase):

  @parameterized.named_parameters(*_CASES)
  def test_history(self, mode, seed):
    self.assertEqual(history.explore(plans.draw(mode, seed)), [])
