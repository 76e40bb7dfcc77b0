"""Shares are runs of microbatches, whoever computes them."""

from absl.testing import parameterized

from bamboo_jax.plan import batch_split


class BatchSplitTest(parameterized.TestCase):

  @parameterized.named_parameters(
      # Shares, pipelines, microbatches per pipeline, then the shares and the
      # microbatches of each pipeline.
      ("one", 1, 1, 3, [[0]], [[0, 1, 2]]),
      ("two", 2, 2, 2, [[0], [1]], [[0, 1], [2, 3]]),
      ("two_on_one", 2, 1, 4, [[0, 1]], [[0, 1, 2, 3]]),
      ("four_on_two", 4, 2, 2, [[0, 1], [2, 3]], [[0, 1], [2, 3]]),
  )
  def test_split(self, shares, pipelines, microbatches, want_s, want_m):
    split = batch_split.BatchSplit(
        num_pipelines=pipelines, num_shares=shares, num_microbatches=microbatches, microbatch_size=5
    )
    each = range(pipelines)
    self.assertEqual([list(split.microbatches(d)) for d in each], want_m)
    self.assertEqual(split.batch_size, 5 * sum(map(len, want_m)))
    self.assertEqual([split.microbatches_of(s) for s in want_s], want_m)

  @parameterized.named_parameters(
      ("shares", (2, 3, 4, 1), "num_shares=3 must be a multiple of num_pipe"),
      ("microbatches", (2, 4, 3, 1), "num_microbatches=3 per pipeline must be"),
  )
  def test_refuses(self, numbers, message):
    with self.assertRaisesRegex(ValueError, message):
      batch_split.BatchSplit(*numbers)

  @parameterized.parameters(
      # Shares, pipelines, what they keep and are to have, then what they get.
      (3, 2, None, None, ((0,), (1, 2))),
      (3, 2, [(0,), (2,)], None, ((0, 1), (2,))),
      (4, 3, [(0,), (1,), (2,)], None, ((0, 3), (1,), (2,))),
      (6, 2, None, (4, 2), ((0, 1, 2, 3), (4, 5))),
      (6, 2, [(0, 1), (4, 5)], (4, 2), ((0, 1, 2, 3), (4, 5))),
  )
  def test_deal_shares(self, num_shares, num_pipelines, kept, counts, want):
    got = batch_split.deal_shares(num_shares, num_pipelines, kept, counts)
    self.assertEqual(got, want)
