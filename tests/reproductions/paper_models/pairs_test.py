from absl.testing import parameterized
import numpy as np
import pytest

from bamboo_jax import base
from bamboo_jax.data import source as source_lib
from tests import folders


class TranslationTest(folders.FolderCase):

  def make(self, files, **options):
    for name, text in files.items():
      (self.folder / name).write_bytes(text)
    paths = {
        key: str(self.folder / options.pop(key))
        for key in ("pattern", "source", "target")
        if key in options
    }
    options = {"sequence_length": 6, "heldout_fraction": 0} | options
    return source_lib.make_source(
        "bamboo_jax.reproductions.paper_models.pairs:make_translation", **paths, **options
    )

  def sentences(self, source):
    arrays = source.batch(range(source.samples_per_epoch), seed=0)
    strip = lambda row: bytes(row[row > 0].astype(np.uint8)).decode()
    pairs = zip(arrays["source"], arrays["targets"], strict=True)
    return sorted((strip(a), strip(b)) for a, b in pairs)

  @parameterized.named_parameters(
      ("columns", {"a.tsv": b"one\teins\ntwo\tzwei\n"}, {"pattern": "*.tsv"}),
      ("lines", {"en": b"one\n\ntwo\n", "de": b"eins\n\nzwei\n"}, {"source": "en", "target": "de"}),
  )
  def test_pairs_of_files(self, files, options):
    source = self.make(files, **options)
    self.assertEqual(self.sentences(source), [("one", "eins"), ("two", "zwei")])

  def test_arrays(self):
    """`inputs` are a token late; what follows the end does not count."""
    source = self.make({"a.tsv": b"ab\tcde\n"}, pattern="a.tsv")
    arrays = source.batch([0], seed=0)
    c, d, e = b"cde"
    expected = {
        "source": [[*b"ab", 0, 0, 0, 0]],
        "inputs": [[0, c, d, e, 0, 0]],
        "targets": [[c, d, e, 0, -1, -1]],
    }
    self.assertEqual({k: v.tolist() for k, v in arrays.items()}, expected)

  def test_long_sentences_are_left_out(self):
    text = b"12345\ta\n123456\ta\nb\t123456\nc\t12345\n"
    source = self.make({"a.tsv": text}, pattern="a.tsv")
    self.assertEqual(self.sentences(source), [("12345", "a"), ("c", "12345")])
    with self.assertRaisesRegex(base.DataError, "All 4 pairs.*=1"):
      self.make({}, pattern="a.tsv", sequence_length=1)

  def test_the_last_pairs_are_held_out(self):
    text = b"".join(b"%d\t%d\n" % (i, i) for i in range(10))
    source = self.make({"a": text}, pattern="a", heldout_fraction=0.2)
    self.assertEqual((source.samples_per_epoch, source.num_heldout), (8, 2))
    held = source.heldout_batch([0, 1])["source"][:, 0].tolist()
    self.assertEqual(held, list(b"89"))

  def test_byte_pairs(self):
    """Token 0 ends a sentence, though the library calls "!" so."""
    library = pytest.importorskip("tokenizers")
    numbers = {word: number for number, word in enumerate("!abcde")}
    words = library.models.BPE({**numbers, "</s>": 6}, [])
    path = self.folder / "tokenizer.json"
    library.Tokenizer(words).save(str(path))
    files = {"a.tsv": b"a!b\tc\nd\te!\n"}
    source = self.make(files, pattern="a.tsv", tokenizer=str(path))
    arrays = source.batch(range(2), seed=0)
    lengths = {k: (arrays[k] > 0).sum(1).tolist() for k in arrays}
    self.assertCountEqual(zip(lengths["source"], lengths["targets"], strict=True), [(3, 1), (1, 2)])

  def test_the_standard_library(self):
    source = source_lib.make_source(
        "bamboo_jax.reproductions.paper_models.pairs:make_translation", sequence_length=64
    )
    self.assertGreater(source.samples_per_epoch, 2000)
    arrays = source.batch(range(4000), seed=0)
    names = [bytes(r[r > 0].astype(np.uint8)) for r in arrays["source"]]
    self.assertTrue(all(n.decode().isidentifier() for n in names))

  @parameterized.named_parameters(
      ("three", b"a\tb\nc\td\te\n", "Line 2 of a.tsv .* has 3"),
      ("one", b"a\tb\n\nc\td\n", "Line 2 of a.tsv .* has 1, of which 0"),
      ("empty", b"a\t\n", "Line 1 of a.tsv .* has 2, of which 1"),
      ("zero", b"a\tb\nc\td\0d\n\0\tf\n", "a.tsv .*: byte 7 is 0"),
  )
  def test_ragged_columns(self, text, message):
    with self.assertRaisesRegex(base.DataError, message):
      self.make({"a.tsv": text}, pattern="a.tsv")

  def test_ragged_lines(self):
    files = {"t.en": b"1\n2\n3\n", "t.de": b"1\n2\n"}
    with self.assertRaisesRegex(base.DataError, "t.de ends before line 3 of t.en, which has 3"):
      self.make(files, source="t.en", target="t.de")
    with self.assertRaisesRegex(base.DataError, "z.de .*: byte 3 is 0"):
      self.make({"z.de": b"1\n2\0\n3"}, source="t.en", target="z.de")
    (self.folder / "z.de").unlink()
    (self.folder / "u.de").write_bytes(b"1\n")
    with self.assertRaisesRegex(base.DataError, "do not pair up"):
      self.make({}, source="t.en", target="*.de")

  def test_impossible_options(self):
    with self.assertRaisesRegex(ValueError, "'pattern', or both"):
      self.make({}, source="t.en")
