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


@unittest.skipUnless(_HAS_TOKENIZERS, "the extra `bpe` is not installed")
class TokenizerFileTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    temp = self.enterContext(tempfile.TemporaryDirectory())
    self.path = pathlib.Path(temp, "tokenizer.json")
    vocabulary = bpe.train_bpe(_TEXT[:1], vocab_size=300)
    self.tokenizer = vocabulary._tokenizer
    self.tokenizer.add_special_tokens(["</s>"])
    self.text = [Document("a", _TEXT[0].content * 2)]

  def read(self):
    self.tokenizer.save(str(self.path))
    return bpe.read_file(self.path)

  @parameterized.named_parameters(
      (
          "truncation",
          lambda t: t.enable_truncation(16),
          "truncation to 16 tokens is switched off",
      ),
      (
          "padding",
          lambda t: t.enable_padding(length=5000),
          "padding is switched off",
      ),
      (
          "padding_of_batches",
          lambda t: t.enable_padding(pad_to_multiple_of=64),
          "padding is switched off",
      ),
      (
          "dropout",
          lambda t: setattr(t.model, "dropout", 0.5),
          "dropout=0.5 of its pairs is switched off",
      ),
  )
  def test_what_is_for_inference_changes_nothing(self, change, message):
    with self.assertNoLogs("absl"):
      plain = self.read()
    change(self.tokenizer)
    with self.assertLogs("absl", "WARNING") as logs:
      changed = self.read()
    self.assertIn(f"{self.path}: {message}.", logs.output[0])
    # Pieces of different lengths, as batches are padded to the longest.
    text = [*self.text, Document("b", _TEXT[0].content * 100)]
    np.testing.assert_array_equal(changed.encode(text), plain.encode(text))
    self.assertEqual(changed.fingerprint, plain.fingerprint)
    got = changed.encode(self.text)
    self.assertEqual(changed.decode(got[:-1]).encode(), self.text[0].content)
    self.assertEqual(got[-1], changed.end)

  def test_special_tokens_of_each_call_are_left_out(self):
    import tokenizers

    plain = self.read().encode(self.text)
    end = self.tokenizer.token_to_id("</s>")
    self.tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="</s> $A </s>", special_tokens=[("</s>", end)]
    )
    np.testing.assert_array_equal(self.read().encode(self.text), plain)

  def test_a_space_before_each_text_is_added_once(self):
    import tokenizers

    line = self.text[0].content[:32]
    long = [Document("a", line * 8000)]  # Four pieces.
    first, second = line.decode(), (line * 2).decode()
    for change in (
        lambda t: setattr(
            t,
            "pre_tokenizer",
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=True),
        ),
        lambda t: setattr(
            t, "normalizer", tokenizers.normalizers.Prepend("\u0120")
        ),
    ):
      change(self.tokenizer)
      vocabulary = self.read()
      got = vocabulary.encode(long)[:-1]
      whole = self.tokenizer.encode((line * 8000).decode()).ids
      self.assertEqual(got.tolist(), whole)
      ids = self.tokenizer.encode(first).ids
      self.assertNotEqual(self.tokenizer.encode(second).ids, ids + ids)
      self.assertIs(vocabulary.fingerprint["in_pieces"], False)

  def test_byte_order_mark(self):
    plain = self.read()
    self.path.write_bytes(b"\xef\xbb\xbf" + self.path.read_bytes())
    marked = bpe.read_file(self.path)
    self.assertEqual(marked.fingerprint, plain.fingerprint)

  @parameterized.parameters(
      (b"{", "is damaged or no tokenizer.json"),
      (b"\x0a\x0e\xff\0", "is damaged or no tokenizer.json"),  # A .model.
      (b"[PAD]\n[UNK]\n", "is damaged or no tokenizer.json"),  # A vocab.txt.
      (None, "Cannot read .*: No such file"),
  )
  def test_other_files(self, content, message):
    if content is not None:
      self.path.write_bytes(content)
    with self.assertRaisesRegex(base.DataError, message) as caught:
      bpe.read_file(self.path)
    self.assertNotIn("remove", str(caught.exception))


class NoTokenizersTest(absltest.TestCase):

  def test_error_names_the_extra(self):
    self.enterContext(mock.patch.dict(sys.modules, {"tokenizers": None}))
    with self.assertRaisesRegex(ValueError, r"pip install 'bamboo_jax\[bpe\]'"):
      bpe.train_bpe(_TEXT, vocab_size=300)
