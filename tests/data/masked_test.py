import dataclasses
import functools
import hashlib

import numpy as np

from bamboo_jax.data import markov, masked, source as source_lib
from tests.data import files_test

L, M = 33, 5
PAD, CLS, SEP, MASK = range(60, 64)


@functools.cache
def make_source():
  return source_lib.make_source("synthetic", sequence_length=L, num_masked=M, vocab_size=64)


@functools.cache
def make_batch():
  return make_source().batch(range(2000), seed=3)


def restore(batch):
  """Returns the texts before they were masked."""
  texts = batch["inputs"].copy()
  rows, columns = np.nonzero(batch["targets"] >= 0)
  texts[rows, batch["places"][rows, columns]] = batch["targets"][rows, columns]
  return texts


class MaskedTest(files_test.FilesCase):

  def test_form(self):
    batch = make_batch()
    for text, segments, is_text in zip(
        restore(batch), batch["segments"], batch["is_text"], strict=True
    ):
      end = is_text.sum()
      first, last = np.flatnonzero(text == SEP)
      self.assertEqual(last, end - 1)
      self.assertEqual(text[0], CLS)
      np.testing.assert_array_equal(is_text, np.arange(L) < end)
      np.testing.assert_array_equal(segments, (np.arange(L) > first) & (np.arange(L) < end))
      self.assertTrue((text[end:] == PAD).all())
      self.assertLess(np.delete(text[:end], [0, first, last]).max(), PAD)
      self.assertGreater(first, 1)
      self.assertGreater(last, first + 1)
    self.assertAlmostEqual((batch["is_text"][:, -1] == 0).mean(), 0.1, delta=0.03)

  def test_masks_are_as_in_the_paper(self):
    batch = make_batch()
    counts = (batch["targets"] >= 0).sum(1)
    num_text = batch["is_text"].sum(1) - 3
    want = np.clip(np.round(0.15 * num_text), 1, M)
    np.testing.assert_array_equal(counts, want)
    is_masked = batch["targets"] >= 0
    self.assertTrue((batch["places"][~is_masked] == 0).all())
    got = np.take_along_axis(batch["inputs"], batch["places"], 1)[is_masked]
    targets = batch["targets"][is_masked]
    self.assertAlmostEqual((got == MASK).mean(), 0.8, delta=0.02)
    self.assertAlmostEqual((got == targets).mean(), 0.1 + 0.1 / 60, delta=0.02)
    random = got[(got != MASK) & (got != targets)]
    self.assertAlmostEqual(random.mean(), 29.5, delta=2)

  def test_half_of_the_pairs_go_on(self):
    """A step that the chain cannot make shows that another text begins."""
    batch, chain = make_batch(), markov.Chain(60, 4, 0)
    self.assertAlmostEqual(batch["is_random"].mean(), 0.5, delta=0.03)
    texts = restore(batch)
    rows, first = np.arange(len(texts)), np.argmax(texts == SEP, axis=1)
    breaks = chain.transitions_VV[texts[rows, first - 1], texts[rows, first + 1]] == 0
    is_random = batch["is_random"] == 1
    self.assertFalse(breaks[~is_random].any())
    self.assertGreater(breaks[is_random].mean(), 0.8)

  def test_frozen(self):
    # If this changes, then so does the data of every run with masked tokens.
    source = make_source()
    found = source.num_heldout, source.vocab_size, source.fingerprint["num_masked"]
    self.assertEqual(found, (1024, 64, M))
    content = b"".join(make_batch()[k].astype("<i4").tobytes() for k in ("inputs", "targets"))
    self.assertEqual(hashlib.sha256(content).hexdigest()[:16], "3e5b35eaf21184e9")

  def test_vocabulary_of_a_file(self):
    words = ("[PAD]", "a", "[CLS]", "[SEP]", "b", "[MASK]", "[UNK]", "c")
    files_test.write_words(self.folder, *words, unknown="[UNK]")
    self.write("text.txt", "a b b a c\n" * 20)
    tokenizer = str(self.folder / "tokenizer.json")
    options = dict(length=11, num_masked=2, heldout_fraction=0.2, tokenizer=tokenizer)
    source = self.make("*.txt", vocab_size=None, **options)
    self.assertEqual(source.vocab_size, 8)
    batch = source.batch(range(40), seed=0)
    self.assertTrue((batch["inputs"][:, 0] == 2).all())
    self.assertEqual({*np.unique(batch["targets"])} - {-1}, {1, 4, 7})
    self.assertIn(5, batch["inputs"])

  def test_packed_documents(self):
    self.write("a.bin", np.array([5, 6, 7, 0, 8, 9, 0, 4, 3, 2, 1, 0, 6, 0], np.uint16))
    options = dict(length=8, vocab_size=14, num_masked=2, documents=True)
    source = self.make("a.bin", packing="whole", end_token=0, **options)
    self.assertEqual((source.vocab_size, source.samples_per_epoch), (14, 2))
    batch = source.batch(range(2), seed=0)
    order = np.argsort(restore(batch)[:, 0])
    texts = np.where(batch["documents"], restore(batch), -1)[order]
    self.assertEqual(texts.tolist(), [[4, 3, 2, 1, 0, 6, 0, -1], [5, 6, 7, 0, 8, 9, 0, -1]])
    documents = batch["documents"][order].tolist()
    self.assertEqual(documents, [[1, 1, 1, 1, 1, 2, 2, 0], [1, 1, 1, 1, 2, 2, 2, 0]])
    self.assertEqual([*batch["inputs"][:, 7]], [10, 10])  # Padding.
    self.assertFalse(batch["segments"].any())
    self.assertTrue((np.sort(batch["targets"]) >= [-1, 0]).all())
    self.assertNotIn("is_random", batch)

  def test_refuses(self):
    source = dataclasses.replace(make_source(), vocab_size=None)
    with self.assertRaisesRegex(ValueError, "has a vocab_size"):
      masked.make_masked(source, M)
    for options, message in (
        ({"sequence_length": 4}, "sequence_length must be at least 5"),
        ({"num_masked": 0}, "num_masked must be at least 1"),
    ):
      given = {"sequence_length": L, "num_masked": M} | options
      with self.assertRaisesRegex(ValueError, message):
        source_lib.make_source("synthetic", **given)
