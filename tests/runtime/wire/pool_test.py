"""A buffer is used again once nothing else refers to it, and not earlier."""

import sys
from unittest import mock

from absl.testing import absltest, parameterized
import jax
import numpy as np

from bamboo_jax.runtime.wire import pool as pool_lib


def address(array):
  return array.__array_interface__["data"][0]


class PoolTest(parameterized.TestCase):

  # CPython 3.14 lends a local variable to a call, so it counts one less.
  @parameterized.parameters(-1, 0, 1)
  def test_only_free_buffers_are_taken(self, more):
    count = sys.getrefcount
    # Two references belong to the replacement: its argument on both ways.
    fake = mock.Mock(getrefcount=lambda buffer: count(buffer) - 1 + more)
    self.enterContext(mock.patch.object(pool_lib, "sys", fake))
    self.assertEqual(fake.getrefcount(object()), count(object()) + more)
    pool = pool_lib.Pool()
    views = {
        "array": lambda taken: taken,
        "view": lambda taken: taken[3:7].view(np.int16),
        "jax": lambda taken: jax.device_put(taken.view(np.float32)),
        "memory": memoryview,
    }
    for name, view in views.items():
      with self.subTest(name):
        taken = pool.take(256)
        first = address(taken)
        kept = view(taken)
        del taken
        self.assertNotEqual(address(pool.take(256)), first)
        del kept
        if name != "jax":  # JAX drops its reference a little later.
          self.assertEqual(address(pool.take(256)), first)

  def test_keeps_so_many(self):
    pool = pool_lib.Pool(most=2)
    taken = [pool.take(100) for _ in range(3)]
    places = [address(one) for one in taken]
    self.assertLen({*places}, 3)
    self.assertEqual([place % 64 for place in places], [0] * 3)
    del taken
    again = [pool.take(100), pool.take(100)]
    self.assertEqual([address(one) for one in again], places[:2])


if __name__ == "__main__":
  absltest.main()
