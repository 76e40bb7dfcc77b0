"""Shares are summed left to right, wherever they lie."""

from absl.testing import absltest
from absl.testing import parameterized
import jax
import numpy as np

from bamboo_jax.runtime.wire import share_sum

LIKE = {
    "w": jax.ShapeDtypeStruct((5, 3), np.float32),
    "b": jax.ShapeDtypeStruct((7,), np.float32),
}


def make_shares(num_shares):
  # Of very different sizes, so that another order of the sum gives other bits.
  rng = np.random.default_rng(0)
  make = lambda a, k: (10.0 ** (3 * k) * rng.standard_normal(a.shape)).astype(
      np.float32
  )
  return [
      {name: make(a, k) for name, a in LIKE.items()} for k in range(num_shares)
  ]


class ShareSumTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ("one_share", [0]),
      ("one_device", [0, 0, 0]),
      ("two_devices", [0, 1]),
      ("other_order", [3, 1, 2]),
      ("two_each", [0, 0, 1, 1]),
      ("uneven", [0, 1, 1, 2]),
      ("interleaved", [1, 0, 1, 0]),
  )
  def test_bits_are_those_of_a_left_to_right_sum(self, places):
    devices = jax.devices()
    holders = [devices[p] for p in places]
    shares = make_shares(len(places))
    want = {}
    for name in LIKE:
      want[name] = shares[0][name]
      for share in shares[1:]:
        want[name] = want[name] + share[name]
    program = share_sum.ShareSum(holders, like=LIKE)
    held = {
        k: jax.device_put(share, holders[k]) for k, share in enumerate(shares)
    }
    totals = program(held)
    self.assertEqual(set(totals), set(holders))
    for device, total in totals.items():
      for name in LIKE:
        self.assertEqual(total[name].devices(), {device})
        np.testing.assert_array_equal(total[name], want[name])
    for share in held.values():
      self.assertFalse(share["w"].is_deleted())

  def test_the_order_of_these_shares_matters(self):
    a, b, c = (share["w"] for share in make_shares(3))
    self.assertTrue(np.any((a + b) + c != a + (b + c)))


if __name__ == "__main__":
  absltest.main()
