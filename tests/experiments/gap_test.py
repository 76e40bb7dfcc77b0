"""The gap between two policies, by cause."""

from absl.testing import parameterized

from bamboo_jax.accounting import account as account_lib
from bamboo_jax.experiments import compare
from tests import profiles

_PRICE = profiles.make_price(1.0, 1.0)


def make_account(num_samples, **parts):
  return account_lib.Account(100.0, 100.0, account_lib.NodeTime(**parts), num_samples, _PRICE)


class GapTest(parameterized.TestCase):

  @parameterized.named_parameters(
      # A tenth of the time that the best trains in is lost.
      ("lost", 720, dict(useful=72, bubble=18, lost=10), {"lost": 10.0}),
      ("idle", 400, dict(useful=40, bubble=10, idle=50), {"idle": 50.0}),
      (
          "pauses",
          640,
          dict(useful=64, bubble=16, recovery=5, restart=10, checkpoint=5),
          {"pauses": 20.0},
      ),
      ("layout", 600, dict(useful=60, bubble=40), {"layout": 25.0}),
      ("redundancy", 600, dict(useful=60, bubble=15, redundant=25), {"redundancy": 25.0}),
      (
          "redundancy_in_bubbles",
          800,
          dict(useful=80, redundant=20),
          {"layout": -25.0, "redundancy": 25.0},
      ),
  )
  def test_one_cause(self, num_samples, parts, expected):
    best = make_account(800, useful=80, bubble=20)
    mine = make_account(num_samples, **parts)
    got = compare.split_gap(mine, best)
    self.assertAlmostEqual(sum(got.values()), 100 * (1 - num_samples / 800))
    for cause in compare.CAUSES:
      self.assertAlmostEqual(got[cause], expected.get(cause, 0.0), msg=cause)

  def test_a_run_that_never_trained(self):
    best = make_account(800, useful=80, bubble=20)
    self.assertIsNone(compare.mean_gap([make_account(0, idle=100)], [best]))
