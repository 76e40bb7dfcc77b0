"""Which copies are about to vanish."""

import itertools

from absl.testing import absltest

from bamboo_jax.recovery import survival


class EndingTest(absltest.TestCase):

  def test_all_copies_of_three_nodes_and_two_segments(self):
    pairs = [*itertools.product(range(3), range(2))]
    for held in itertools.product([False, True], repeat=len(pairs)):
      copies = [*itertools.compress(pairs, held)]
      for leaving in itertools.product([False, True], repeat=3):
        gone = [*itertools.compress(range(3), leaving)]
        want = []
        for segment in range(2):
          nodes = [n for n, s in copies if s == segment]
          if nodes and all(n in gone for n in nodes):
            want.append(segment)
        got = survival.find_ending(iter(copies), gone)
        self.assertEqual(got, tuple(want), (copies, gone))
