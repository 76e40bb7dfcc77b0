import dataclasses
import importlib.util
import json
import sys
import unittest
from unittest import mock

from absl.testing import absltest, parameterized
import numpy as np

from bamboo_jax import base
from bamboo_jax.data import corpus, vocabularies
from tests import folders
from tests.data import files_test

CorpusDocument = corpus.CorpusDocument

_HAS_TOKENIZERS = importlib.util.find_spec("tokenizers") is not None
_TEXT = (
    CorpusDocument("a", b"the cat and the dog and the end\n" * 50),
    CorpusDocument("b", "  naïve <|endoftext|> €\n\n\tif x:\r\n".encode()),
)


def train_tokenizer(texts, special=("</s>",)):
  """Returns a tokenizer of byte pairs with special tokens, such as an end of documents."""
  import tokenizers

  pairs = tokenizers.ByteLevelBPETokenizer()
  pairs.train_from_iterator(texts, 300, special_tokens=[*special], show_progress=False)
  return pairs._tokenizer


class ByteVocabularyTest(absltest.TestCase):

  def test_encode(self):
    documents = [CorpusDocument("a", b"ab"), CorpusDocument("b", b""), CorpusDocument("c", b"\xff")]
    got = vocabularies.encode(vocabularies.BYTES, documents)
    self.assertEqual(got.tolist(), [97, 98, 0, 0, 255, 0])
    self.assertEqual(got.dtype, np.uint8)
    self.assertEmpty(vocabularies.encode(vocabularies.BYTES, []))

  def test_tokens_are_as_small_as_the_vocabulary_allows(self):
    for size, dtype in ((1 << 16, np.uint16), ((1 << 16) + 1, np.uint32)):
      encode = lambda texts, last=size - 1: [[last] for _ in texts]
      words = dataclasses.replace(vocabularies.BYTES, vocab_size=size, encode_texts=encode, end=7)
      got = vocabularies.encode(words, [CorpusDocument("a", b"word")])
      self.assertEqual((got.tolist(), got.dtype), ([size - 1, 7], dtype))


@unittest.skipUnless(_HAS_TOKENIZERS, "the extra `bpe` is not installed")
class TokenizerFileTest(folders.FolderCase):

  def setUp(self):
    super().setUp()
    self.path = self.folder / "tokenizer.json"
    self.tokenizer = train_tokenizer([_TEXT[0].content.decode()])
    self.text = [CorpusDocument("a", _TEXT[0].content * 2)]

  def read(self):
    self.tokenizer.save(str(self.path))
    return vocabularies.read_vocabulary(self.path)

  @parameterized.named_parameters(
      ("truncation", lambda t: t.enable_truncation(16), "truncation to 16 tokens is switched off"),
      ("padding", lambda t: t.enable_padding(length=5000), "padding is switched off"),
      ("dropout", lambda t: setattr(t.model, "dropout", 0.5), "dropout=0.5 of its pairs is switch"),
  )
  def test_what_is_for_inference_changes_nothing(self, change, message):
    with self.assertNoLogs("absl"):
      plain = self.read()
    change(self.tokenizer)
    with self.assertLogs("absl", "WARNING") as logs:
      changed = self.read()
    self.assertIn(f"{self.path}: {message}", logs.output[0])
    # Pieces of different lengths, as batches are padded to the longest.
    text = [*self.text, CorpusDocument("b", _TEXT[0].content * 100)]
    np.testing.assert_array_equal(
        vocabularies.encode(changed, text), vocabularies.encode(plain, text)
    )
    self.assertEqual(changed.fingerprint, plain.fingerprint)
    got = vocabularies.encode(changed, self.text)
    decoded = self.tokenizer.decode(got[:-1].tolist())
    self.assertEqual(decoded.encode(), self.text[0].content)
    self.assertEqual((got[-1], got.dtype), (changed.end, np.uint16))
    self.assertEmpty(vocabularies.encode(changed, []))

  def test_long_documents_are_encoded_in_pieces(self):
    vocabulary = self.read()
    once = vocabularies.encode(vocabulary, self.text)[:-1]  # 3200 bytes.
    long = [CorpusDocument("long", self.text[0].content * 100)]
    got = vocabularies.encode(vocabulary, long)
    np.testing.assert_array_equal(got[:-1], np.tile(once, 100))

  def test_not_utf8(self):
    binary = [CorpusDocument("x.bin", b"ok\xff")]
    with self.assertRaisesRegex(base.DataError, "x.bin: byte 2 is not UTF-8"):
      vocabularies.encode(self.read(), binary)

  def test_special_tokens_of_each_call_are_left_out(self):
    import tokenizers

    plain = vocabularies.encode(self.read(), self.text)
    end = self.tokenizer.token_to_id("</s>")
    self.tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="</s> $A </s>", special_tokens=[("</s>", end)]
    )
    np.testing.assert_array_equal(vocabularies.encode(self.read(), self.text), plain)

  def test_a_space_before_each_text_is_added_once(self):
    import tokenizers

    line = self.text[0].content[:32].decode()
    long = [CorpusDocument("a", (line * 8000).encode())]  # Four pieces.
    for name, part in (
        ("pre_tokenizer", tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=True)),
        ("normalizer", tokenizers.normalizers.Prepend("\u0120")),
    ):
      setattr(self.tokenizer, name, part)
      vocabulary = self.read()
      got = vocabularies.encode(vocabulary, long)[:-1]
      once, twice, whole = (self.tokenizer.encode(line * n).ids for n in (1, 2, 8000))
      self.assertEqual(got.tolist(), whole)
      self.assertNotEqual(twice, once + once)
      self.assertIs(vocabulary.fingerprint["in_pieces"], False)

  def test_byte_order_mark(self):
    plain = self.read()
    self.path.write_bytes(b"\xef\xbb\xbf" + self.path.read_bytes())
    marked = vocabularies.read_vocabulary(self.path)
    self.assertEqual(marked.fingerprint, plain.fingerprint)

  def test_ends_with_other_names(self):
    """The end of Gemma, whose </s> is a tag of HTML."""
    path, folder = str(self.path), self.folder
    words = files_test.write_words(folder, "a", "</s>", "<eos>", "<turn>", unknown="a")
    read, digests = vocabularies.read_vocabulary, set()
    for name, content, end in (
        ("config.json", {}, 1),  # As before there were other ways.
        ("config.json", {"eos_token_id": [2, 3]}, 2),
        ("config.json", {"eos_token_id": None}, 1),
        ("special_tokens_map.json", {"eos_token": "<turn>"}, 3),
        ("tokenizer_config.json", {"eos_token": {"content": "<eos>"}}, 2),
        ("tokenizer_config.json", {"eos_token": "<none>"}, 3),
    ):
      (folder / name).write_text(json.dumps(content))
      found = read(path)
      self.assertEqual(found.end, end, name)
      digests.add(found.fingerprint["vocab_sha256"])
      got = vocabularies.encode(found, [CorpusDocument("a", b"a")])
      self.assertEqual(got.tolist(), [0, end])
    self.assertLen(digests, 3)
    self.assertEqual(read(path, end_token=0).end, 0)
    with self.assertRaisesRegex(ValueError, "one of the 4 tokens of .* got 4"):
      read(path, end_token=4)
    words.add_special_tokens(["</s>"])
    words.save(path)
    self.assertEqual(read(path).end, 1)
    (folder / "tokenizer_config.json").write_text("{")
    self.assertEqual(read(path).end, 1)  # Needs no other file.
    with self.assertRaisesRegex(ValueError, "None or 0 for bytes, got 1"):
      read(None, end_token=1)

  def test_no_end(self):
    files_test.write_words(self.path.parent, "a", "b", unknown="a")
    with self.assertRaisesRegex(base.DataError, "Give the option end_token.$"):
      vocabularies.read_vocabulary(self.path)
    self.assertEqual(vocabularies.read_vocabulary(self.path, 2, 1).end, 1)
    (self.path.parent / "config.json").write_text("{")
    with self.assertRaisesRegex(base.DataError, "Cannot read .*/config.json"):
      vocabularies.read_vocabulary(self.path)

  @parameterized.parameters(
      (b"{", "is damaged or no tokenizer.json"), (None, "Cannot read .*: No such file")
  )
  def test_other_files(self, content, message):
    if content is not None:
      self.path.write_bytes(content)
    with self.assertRaisesRegex(base.DataError, message):
      vocabularies.read_vocabulary(self.path)


class NoTokenizersTest(absltest.TestCase):

  def test_sentencepiece_is_refused(self):
    with self.assertRaisesRegex(base.DataError, "tokenizer.model is a file of SentencePiece, must"):
      vocabularies.read_vocabulary("llama/tokenizer.model")

  def test_error_names_the_extra(self):
    self.enterContext(mock.patch.dict(sys.modules, {"tokenizers": None}))
    with self.assertRaisesRegex(ValueError, r"pip install 'bamboo_jax\[bpe\]'"):
      vocabularies.read_vocabulary("tokenizer.json")
