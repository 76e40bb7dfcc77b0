"""Plans that once broke something, and some of the seeds of each mode.

The name of a plan says what went wrong. The plans take ten seconds, the seeds a
minute: each history a tenth of a second, in some modes a second.
"""

import json
import pathlib

from absl.testing import parameterized

from bamboo_jax.testing.simulation import history
from bamboo_jax.testing.simulation import plans

_CORPUS = sorted((pathlib.Path(__file__).parent / "corpus").glob("*.json"))
_NUM_SEEDS = {"train": 10}


class CorpusTest(parameterized.TestCase):

  @parameterized.named_parameters((path.stem, path) for path in _CORPUS)
  def test_plan(self, path):
    plan = plans.from_dict(json.loads(path.read_text()))
    self.assertEqual(history.explore(plan), [])

  @parameterized.parameters(*sorted(plans.MODES))
  def test_seeds(self, mode):
    for seed in range(_NUM_SEEDS.get(mode, 40)):
      with self.subTest(seed):
        self.assertEqual(history.explore(plans.draw(mode, seed)), [])
