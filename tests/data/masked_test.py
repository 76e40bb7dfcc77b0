import dataclasses
import functools
import hashlib

import numpy as np

from bamboo_jax import base
from bamboo_jax.data import markov, masked, source as source_lib
from tests import folders
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


class MaskedTest(folders.FolderCase):

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
    breaks = []
    for text in restore(batch):
      first, _ = np.flatnonzero(text == SEP)
      step = chain.transitions_VV[text[first - 1], text[first + 1]]
      breaks.append(step == 0)
    breaks = np.array(breaks)
    is_random = batch["is_random"] == 1
    self.assertFalse(breaks[~is_random].any())
    self.assertGreater(breaks[is_random].mean(), 0.8)

  def test_depends_on_seed_and_index_only(self):
    source = make_source()
    for key, array in source.batch([9, 4], seed=3).items():
      np.testing.assert_array_equal(array, make_batch()[key][[9, 4]])
      self.assertEqual(array.dtype, np.int32)
    other = source.batch([9, 4], seed=4)["inputs"]
    self.assertTrue((other != make_batch()["inputs"][[9, 4]]).any())
    heldout = source.heldout_batch(range(4))
    self.assertTrue((heldout["inputs"] != make_batch()["inputs"][:4]).any())
    self.assertEqual(source.num_heldout, 1024)
    self.assertEqual((source.vocab_size, source.fingerprint["num_masked"]), (64, M))
    again = source.heldout_batch([2])["inputs"]
    np.testing.assert_array_equal(again, heldout["inputs"][[2]])

  def test_frozen(self):
    # If this changes, then so does the data of every run with masked tokens.
    content = b"".join(make_batch()[k].astype("<i4").tobytes() for k in ("inputs", "targets"))
    self.assertEqual(hashlib.sha256(content).hexdigest()[:16], "3e5b35eaf21184e9")

  def test_vocabulary_of_a_file(self):
    folder = self.folder
    words = ("[PAD]", "a", "[CLS]", "[SEP]", "b", "[MASK]", "[UNK]", "c")
    files_test.write_words(folder, *words, unknown="[UNK]")
    (folder / "text.txt").write_text("a b b a c\n" * 20)
    options = {
        "path": str(folder / "*.txt"),
        "cache_dir": folder / "cache",
        "sequence_length": 11,
        "num_masked": 2,
        "heldout_fraction": 0.2,
        "tokenizer": str(folder / "tokenizer.json"),
    }
    source = source_lib.make_source("files", **options)
    self.assertEqual(source.vocab_size, 8)
    batch = source.batch(range(40), seed=0)
    self.assertTrue((batch["inputs"][:, 0] == 2).all())
    self.assertEqual({*np.unique(batch["targets"])} - {-1}, {1, 4, 7})
    self.assertIn(5, batch["inputs"])
    files_test.write_words(folder, "a", unknown="a")
    with self.assertRaisesRegex(base.DataError, "no end-of-document token"):
      source_lib.make_source("files", **options)

  def test_packed_documents(self):
    tokens = np.array([5, 6, 7, 0, 8, 9, 0, 4, 3, 2, 1, 0, 6, 0], np.uint16)
    tokens.tofile(self.folder / "a.bin")
    source = source_lib.make_source(
        str(self.folder / "a.bin"),
        {"sequence_length": 8, "num_masked": 2, "documents": True},
        vocab_size=14,
        packing="whole",
        end_token=0,
        heldout_fraction=0.0,
    )
    self.assertEqual((source.vocab_size, source.samples_per_epoch), (14, 2))
    batch = source.batch(range(2), seed=0)
    self.assertEqual(
        sorted([*row] for row in np.where(batch["documents"], restore(batch), -1)),
        [[4, 3, 2, 1, 0, 6, 0, -1], [5, 6, 7, 0, 8, 9, 0, -1]],
    )
    self.assertEqual(
        sorted([*row] for row in batch["documents"]),
        [[1, 1, 1, 1, 1, 2, 2, 0], [1, 1, 1, 1, 2, 2, 2, 0]],
    )
    self.assertEqual([*batch["inputs"][:, 7]], [10, 10])  # Padding.
    self.assertFalse(batch["segments"].any())
    self.assertTrue((np.sort(batch["targets"]) >= [-1, 0]).all())
    self.assertNotIn("is_random", batch)

  def test_needs_a_vocabulary(self):
    source = dataclasses.replace(make_source(), vocab_size=None)
    with self.assertRaisesRegex(ValueError, "has a vocab_size"):
      masked.make_masked(source, M)

  def test_refuses(self):
    for options, message in (
        ({"sequence_length": 4}, "sequence_length must be at least 5"),
        ({"num_masked": 0}, "num_masked must be at least 1"),
        ({"vocabsize": 4}, "'vocabsize'"),
    ):
      given = {"sequence_length": L, "num_masked": M} | options
      with self.assertRaisesRegex(ValueError, message):
        source_lib.make_source("synthetic", **given)
