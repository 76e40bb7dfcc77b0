import random

from absl.testing import absltest

from bamboo_jax.schedule import holdings as holdings_lib
from bamboo_jax.schedule import instruction as instruction_lib
from tests.schedule.verify import cuts as cuts_lib


def make_cuts(rows, **options):
  parsed = {
      node: tuple(map(instruction_lib.parse, text.split()))
      for node, text in rows.items()
  }
  return cuts_lib.Cuts(instruction_lib.Schedule(parsed), **options)


class CutsTest(absltest.TestCase):

  def test_a_receive_follows_its_send(self):
    cuts = make_cuts({4: "0F0 0SA0>5", 5: "0RA0<4 1F0"})
    self.assertEqual(cuts.nodes, (4, 5))
    # The transfer is half done in (1, 0).
    self.assertCountEqual(cuts, [(0, 0), (1, 0), (1, 1), (1, 2)])

  def test_a_sender_may_be_far_ahead(self):
    cuts = make_cuts({0: "0F0 0SA0>1 0F1 0SA1>1", 1: "0RA0<0 1F0 0RA1<0 1F1"})
    self.assertCountEqual(
        cuts,
        [
            *[(0, 0), (1, 0), (1, 1), (1, 2)],
            *[(2, 0), (2, 1), (2, 2), (2, 3), (2, 4)],
        ],
    )

  def test_the_middle_of_an_exchange(self):
    cuts = make_cuts({0: "0F0 0SA0>1 0RG0<1 0B0", 1: "0RA0<0 1F0 1B0 0SG0>0"})
    self.assertCountEqual(
        cuts, [(0, 0), (1, 0), (1, 1), (1, 2), (1, 3), (2, 3), (3, 3)]
    )

  def test_holdings(self):
    start = holdings_lib.Holdings(residuals=frozenset({(1, 7)}))
    cuts = make_cuts({0: "0F0 0SA0>1", 1: "0RA0<0 1F0"}, holdings={1: start})
    row = tuple(map(instruction_lib.parse, ("0RA0<0", "1F0")))
    self.assertEqual(
        cuts.holdings((1, 1)),
        {
            0: holdings_lib.after([instruction_lib.parse("0F0")]),
            1: holdings_lib.after(row[:1], start=start),
        },
    )
    self.assertEqual(
        cuts.holdings((1, 2))[1], holdings_lib.after(row, start=start)
    )

  def test_draw(self):
    cuts = make_cuts({0: "0F0 0SA0>1 0RG0<1 0B0", 1: "0RA0<0 1F0 1B0 0SG0>0"})
    rng = random.Random(0)
    self.assertEqual({cuts.draw(rng) for _ in range(200)}, set(cuts))
