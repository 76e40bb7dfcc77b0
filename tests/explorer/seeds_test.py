"""Histories that are drawn, some of each mode; `launch/test --nightly` runs many more.

Each takes a tenth of a second, in some modes a second.
"""

from absl.testing import parameterized

from tests import samples
from tests.explorer import history, plans

_CASES = [
    (f"{mode}_{seed}", mode, seed)
    for mode in sorted(plans.MODES)
    for seed in samples.draw(range(10), 1, topic=mode)
]


class SeedsTest(parameterized.TestCase):

  @parameterized.named_parameters(*_CASES)
  def test_history(self, mode, seed):
    self.assertEqual(history.explore(plans.draw(mode, seed)), [])
