"""Shares are summed left to right, wherever they lie."""

import collections
import math
import re

from absl.testing import parameterized
import jax
import numpy as np

from bamboo_jax.runtime.wire import share_sum

LIKE = {
    "w": jax.ShapeDtypeStruct((5, 3), np.float32),
    "b": jax.ShapeDtypeStruct((7,), np.float32),
}
# More than one part; no size is a multiple of the number of parts or devices.
LARGE = {
    "w": jax.ShapeDtypeStruct((501, 512), np.float32),
    "e": jax.ShapeDtypeStruct((513, 1023), np.float32),
    "b": jax.ShapeDtypeStruct((1021,), np.float32),
    "t": jax.ShapeDtypeStruct((3, 1), np.float32),
}

PLACES = {
    "one_share": [0],
    "one_device": [0, 0, 0],
    "two_devices": [0, 1],
    "other_order": [3, 1, 2],
    "two_each": [0, 0, 1, 1],
    "uneven": [0, 1, 1, 2],
    "interleaved": [1, 0, 1, 0],
    "seven": [6, 5, 4, 3, 2, 1, 0],
    "eight": [0, 1, 2, 3, 4, 5, 6, 7],
    "folded": [0, 1, 2, 3, 3, 2, 1, 0],
}


def count_bytes(like):
  return sum(4 * math.prod(a.shape) for a in jax.tree.leaves(like))


def make_shares(num_shares, like=LIKE):
  # Of very different sizes, so that another order of the sum gives other bits.
  rng = np.random.default_rng(0)
  make = lambda a, k: (10.0 ** (3 * k) * rng.standard_normal(a.shape)).astype(
      np.float32
  )
  return [
      {name: make(a, k) for name, a in like.items()} for k in range(num_shares)
  ]


class ShareSumTest(parameterized.TestCase):

  @parameterized.product(where=[*PLACES], like=(LIKE, LARGE))
  def test_bits_are_those_of_a_left_to_right_sum(self, where, like):
    places, devices = PLACES[where], jax.devices()
    holders = [devices[p] for p in places]
    shares = make_shares(len(places), like)
    want = {}
    for name in like:
      want[name] = shares[0][name]
      for share in shares[1:]:
        want[name] = want[name] + share[name]
    program = share_sum.ShareSum(holders, like=like)
    held = {
        k: jax.device_put(share, holders[k]) for k, share in enumerate(shares)
    }
    totals = program(held)
    self.assertEqual(set(totals), set(holders))
    for device, total in totals.items():
      for name in like:
        self.assertEqual(total[name].devices(), {device})
        np.testing.assert_array_equal(total[name], want[name])
    for share in held.values():
      self.assertFalse(share["w"].is_deleted())

  @parameterized.parameters("two_devices", "eight", "two_each", "uneven")
  def test_it_needs_less_than_two_gradients_of_memory(self, where):
    holders = [jax.devices()[p] for p in PLACES[where]]
    program = share_sum.ShareSum(holders, like=LARGE).program
    temp_bytes = program.memory_analysis().temp_size_in_bytes
    self.assertLess(temp_bytes, 0.7 * count_bytes(LARGE))

  @parameterized.parameters(2, 3, 8)
  def test_a_device_sends_a_slice_of_the_gradient_and_of_the_sum(self, num):
    program = share_sum.ShareSum(jax.devices()[:num], like=LIKE).program
    found = collections.Counter()
    pattern = r"= \(?f32\[([\d,]+)\].* (all-to-all|all-gather)\("
    for shape, kind in re.findall(pattern, program.as_text()):
      found[kind] += 4 * math.prod(map(int, shape.split(",")))
    # An element of the result of all_to_all is a slice, of all_gather all.
    num_bytes = 4 * num * math.ceil(count_bytes(LIKE) / 4 / num)
    self.assertEqual(
        found, {"all-to-all": num_bytes // num, "all-gather": num_bytes}
    )

  def test_accumulators_without_arrays_sum_to_themselves(self):
    total = share_sum.ShareSum(jax.devices()[:2], like={"w": {}})
    held = {0: {"w": {}}, 1: {"w": {}}}
    self.assertEqual(total(held), dict.fromkeys(jax.devices()[:2], {"w": {}}))

  def test_the_order_of_these_shares_matters(self):
    a, b, c = (share["w"] for share in make_shares(3))
    self.assertTrue(np.any((a + b) + c != a + (b + c)))
