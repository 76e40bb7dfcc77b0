import math

from absl.testing import parameterized
import numpy as np

from bamboo_jax.data import markov


class MarkovTest(parameterized.TestCase):

  @parameterized.parameters((2, 1), (5, 3), (64, 4))
  def test_chain(self, vocab_size, branching):
    chain = markov.Chain(vocab_size, branching, 0)
    p_VV = chain.transitions_VV
    np.testing.assert_array_equal(p_VV.sum(axis=1), 1.0)  # Exact, in binary.
    np.testing.assert_array_equal((p_VV > 0).sum(axis=1), branching)
    np.testing.assert_allclose(chain.stationary_V @ p_VV, chain.stationary_V, atol=1e-14)
    self.assertGreater(chain.stationary_V.min(), 0.0)
    self.assertAlmostEqual(chain.stationary_V.sum(), 1.0, places=12)

  def test_best_loss_by_hand(self):
    # From 0 to 0 with probability a, from 1 to 1 with b: the chain is at 0 for
    # (1 - b) / (2 - a - b) of the time.
    chain = markov.Chain(2, 2, 0)
    a, b = np.diag(chain.transitions_VV)
    at_0 = (1 - b) / (2 - a - b)
    entropies = [-p * math.log(p) - (1 - p) * math.log(1 - p) for p in (a, b)]
    self.assertAlmostEqual(chain.best_loss, at_0 * entropies[0] + (1 - at_0) * entropies[1])

  @parameterized.parameters(False, True)
  def test_samples_follow_the_chain(self, heldout):
    chain = markov.Chain(8, 3, 0)
    source = markov.make_walks(sequence_length=100, vocab_size=8, branching=3)
    indices = range(500)
    batch = source.heldout_batch(indices) if heldout else source.batch(indices, seed=11)
    inputs, targets = batch["inputs"], batch["targets"]
    self.assertEqual(inputs.shape, (500, 100))
    self.assertEqual(inputs.dtype, np.int32)
    np.testing.assert_array_equal(inputs[:, 1:], targets[:, :-1])
    # 50,000 pairs; 0.01 is about five standard deviations of each frequency.
    pairs = np.bincount((8 * inputs + targets).ravel(), minlength=64)
    expected = chain.stationary_V[:, None] * chain.transitions_VV
    frequencies = pairs.reshape(8, 8) / pairs.sum()
    np.testing.assert_allclose(frequencies, expected, atol=0.01)
    self.assertEqual(np.sum(frequencies[expected == 0]), 0)
    starts = np.bincount(inputs[:, 0], minlength=8) / 500
    np.testing.assert_allclose(starts, chain.stationary_V, atol=0.08)
    loss = -np.log(chain.transitions_VV[inputs, targets]).mean()
    self.assertAlmostEqual(loss, chain.best_loss, delta=0.02)

  def test_no_more_branches_than_tokens_by_default(self):
    source = markov.make_walks(sequence_length=8, vocab_size=3)
    self.assertEqual(source.fingerprint["branching"], 3)

  def test_frozen(self):
    # If these change, then so do the results of all runs on this task.
    chain = markov.make_walks(sequence_length=8)
    self.assertEqual(
        chain.batch([3], seed=7)["inputs"].tolist(), [[42, 22, 16, 63, 57, 58, 62, 39]]
    )
    best_loss = markov.Chain(64, 4, 0).best_loss
    self.assertAlmostEqual(best_loss, 1.0586075278165, places=12)
    other = markov.make_walks(sequence_length=8, chain_seed=1).batch([3], seed=7)["inputs"]
    self.assertEqual(other.tolist(), [[33, 7, 8, 23, 42, 43, 60, 45]])

  @parameterized.parameters(
      ("sequence_length", 0, "at least 1, got 0"),
      ("vocab_size", 1, "at least 2, got 1"),
      ("branching", 65, "at least 1 and at most 64, got 65"),
      ("num_heldout", -1, "at least 0, got -1"),
  )
  def test_refuses(self, name, value, message):
    options = {"sequence_length": 8, name: value}
    with self.assertRaisesRegex(ValueError, f"{name} must be {message}"):
      markov.make_walks(**options)
