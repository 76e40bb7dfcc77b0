from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from bamboo_jax import base
from bamboo_jax.data import corpus
from bamboo_jax.data import draws
from bamboo_jax.data import windows

_MANIFEST = corpus.make_manifest([corpus.Document("a.txt", b"0123456789")])


def _make_windows(num_train, num_heldout, *, sequence_length):
  """Returns windows of a text whose tokens are their own places."""
  tokens = np.arange(num_train + num_heldout, dtype=np.uint16)
  return windows.make_windows(
      tokens[:num_train],
      tokens[num_train:],
      sequence_length=sequence_length,
      vocab_size=len(tokens),
      manifest=_MANIFEST,
      fingerprint={},
  )


class WindowsTest(parameterized.TestCase):

  @parameterized.parameters(
      # Train tokens, held-out tokens, length, windows of each part.
      (5, 5, 4, 1, 1),
      (8, 9, 4, 1, 2),
      (9, 0, 4, 2, 0),
      (101, 3, 1, 100, 2),
      (1000, 100, 16, 62, 6),
  )
  def test_every_window_once_per_epoch(
      self, num_train, num_heldout, length, num_windows, num_heldout_windows
  ):
    text = _make_windows(num_train, num_heldout, sequence_length=length)
    self.assertEqual(text.samples_per_epoch, num_windows)
    self.assertEqual(text.num_heldout, num_heldout_windows)
    starts = length * np.arange(num_windows)
    for epoch in range(3):
      indices = range(epoch * num_windows, (epoch + 1) * num_windows)
      batch = text.batch(indices, seed=5)
      for name, shift in (("inputs", 0), ("targets", 1)):
        array = batch[name]
        self.assertEqual(array.shape, (num_windows, length))
        self.assertEqual(array.dtype, np.int32)
        np.testing.assert_array_equal(
            array[np.argsort(array[:, 0])],
            starts[:, None] + np.arange(length) + shift,
        )

  def test_orders(self):
    text = _make_windows(1025, 0, sequence_length=16)
    orders = [
        tuple(text.batch(range(first, first + 64), seed=seed)["inputs"][:, 0])
        for seed in (0, 1, draws.MAX_SEED)
        for first in (0, 64, 128)
    ]
    # All differ, between epochs and between seeds.
    self.assertLen(set(orders), 9)
    self.assertNotIn(tuple(range(0, 1024, 16)), orders)

  def test_samples_do_not_depend_on_the_others(self):
    text = _make_windows(1025, 0, sequence_length=16)
    indices = [3, 200, 63, 64, 3, 10**12]  # Of several epochs.
    together = text.batch(indices, seed=5)["inputs"]
    alone = [text.batch([i], seed=5)["inputs"][0] for i in indices]
    np.testing.assert_array_equal(together, alone)

  def test_heldout_is_in_order_and_disjoint(self):
    text = _make_windows(20, 13, sequence_length=4)
    batch = text.heldout_batch(range(3))
    self.assertEqual(batch["inputs"].ravel().tolist(), list(range(20, 32)))
    self.assertEqual(batch["targets"].ravel().tolist(), list(range(21, 33)))
    train = text.batch(range(text.samples_per_epoch), seed=0)
    self.assertLess(max(a.max() for a in train.values()), 20)

  @parameterized.named_parameters(
      ("no_training_text", 4, 5, "training text .* 4 tokens.* needs 5.*a.txt"),
      ("no_text", 0, 0, "training text .* 0 tokens"),
      ("no_heldout_text", 5, 4, "held-out text .* 4 tokens"),
  )
  def test_too_short(self, num_train, num_heldout, message):
    with self.assertRaisesRegex(base.DataError, message):
      _make_windows(num_train, num_heldout, sequence_length=4)

  def test_no_length(self):
    with self.assertRaisesRegex(ValueError, "sequence_length must be at least"):
      _make_windows(9, 9, sequence_length=0)


class DrawsTest(absltest.TestCase):

  def test_frozen(self):
    # If these change, then so does the data of every run.
    self.assertEqual(
        draws.raw_bits(1, 2, count=2).tolist(),
        [5705853004827290377, 6584680345644299050],
    )
    self.assertEqual(
        draws.permutation(1, 2, size=8).tolist(), [4, 2, 0, 6, 1, 5, 7, 3]
    )

  def test_arguments_tell_streams_apart(self):
    keys = [(s, i, t) for s in (0, 1) for i in (0, 1) for t in (0, 1)]
    bits = [draws.raw_bits(s, i, stream=t, count=100) for s, i, t in keys]
    self.assertLen(np.unique(np.concatenate(bits)), 800)

  def test_first_bits_do_not_depend_on_the_count(self):
    np.testing.assert_array_equal(
        draws.raw_bits(3, 4, count=9)[:5], draws.raw_bits(3, 4, count=5)
    )
