import importlib.util
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from bamboo_jax import base
from bamboo_jax.data import bpe
from bamboo_jax.data import corpus
from bamboo_jax.data import tokens

Document = corpus.Document

_HAS_TOKENIZERS = importlib.util.find_spec("tokenizers") is not None
_TEXT = (
    Document("a", b"the cat and the dog and the end\n" * 50),
    Document("b", "  naïve <|endoftext|> €\n\n\tif x:\r\n".encode()),
)


class ByteTokensTest(absltest.TestCase):

  def test_encode(self):
    got = tokens.ByteTokens().encode(
        [Document("a", b"ab"), Document("b", b""), Document("c", b"\xff")]
    )
    self.assertEqual(got.tolist(), [97, 98, 0, 0, 255, 0])
    self.assertEqual(got.dtype, np.uint8)
    self.assertEmpty(tokens.ByteTokens().encode([]))


@unittest.skipUnless(_HAS_TOKENIZERS, "the extra `bpe` is not installed")
class BpeTokensTest(parameterized.TestCase):

  def test_no_text_is_lost(self):
    vocabulary = bpe.train_bpe(_TEXT[:1], vocab_size=300)
    got = vocabulary.encode(_TEXT)
    text = b"".join(d.content + b"\0" for d in _TEXT)
    self.assertEqual(vocabulary.decode(got), text.decode())
    self.assertEqual(got.dtype, np.uint16)
    self.assertLess(got.max(), 300)
    self.assertEmpty(vocabulary.encode([]))

  def test_pairs_save_tokens(self):
    # Six words with their spaces, each of which has become one token.
    line = [Document("a", b"the cat and the dog")]
    for vocab_size, length in ((256, 19 + 1), (300, 5 + 1)):
      vocabulary = bpe.train_bpe(_TEXT[:1], vocab_size=vocab_size)
      self.assertLen(vocabulary.encode(line), length)

  def test_long_documents_are_encoded_in_pieces(self):
    vocabulary = bpe.train_bpe(_TEXT[:1], vocab_size=300)
    once = vocabulary.encode(_TEXT[:1])[:-1]  # 1600 bytes.
    content = _TEXT[0].content * 100
    got = vocabulary.encode([Document("long", content)])
    np.testing.assert_array_equal(got[:-1], np.tile(once, 100))

  @parameterized.named_parameters(
      ("text", {"documents": _TEXT[:1]}),
      ("vocab_size", {"vocab_size": 290}),
  )
  def test_fingerprint_changes_with(self, changes):
    options = {"documents": _TEXT, "vocab_size": 280}
    first = bpe.train_bpe(**options)
    self.assertEqual(bpe.train_bpe(**options).fingerprint, first.fingerprint)
    other = bpe.train_bpe(**(options | changes))
    self.assertNotEqual(other.fingerprint, first.fingerprint)

  def test_cache(self):
    folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    options = {"vocab_size": 280, "cache_dir": folder / "new"}
    first = bpe.train_bpe(_TEXT, **options)
    (file,) = (folder / "new").iterdir()
    written = file.stat().st_mtime_ns
    again = bpe.train_bpe(_TEXT, **options)
    self.assertEqual(again.fingerprint, first.fingerprint)
    np.testing.assert_array_equal(again.encode(_TEXT), first.encode(_TEXT))
    self.assertEqual(file.stat().st_mtime_ns, written)
    bpe.train_bpe(_TEXT[:1], **options)
    self.assertLen(list((folder / "new").iterdir()), 2)
    file.write_text("{")
    with self.assertRaisesRegex(base.DataError, f"{file.name} is damaged"):
      bpe.train_bpe(_TEXT, **options)

  def test_not_utf8(self):
    binary = [Document("x.bin", b"ok\xff")]
    with self.assertRaisesRegex(base.DataError, "x.bin: byte 2 is not UTF-8"):
      bpe.train_bpe(binary, vocab_size=300)
    with self.assertRaisesRegex(ValueError, "at least 256.*got 255"):
      bpe.train_bpe(_TEXT, vocab_size=255)


class NoTokenizersTest(absltest.TestCase):

  def test_error_names_the_extra(self):
    self.enterContext(mock.patch.dict(sys.modules, {"tokenizers": None}))
    with self.assertRaisesRegex(ValueError, r"pip install 'bamboo_jax\[bpe\]'"):
      bpe.train_bpe(_TEXT, vocab_size=300)
