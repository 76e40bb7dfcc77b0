import importlib.util
import pathlib
import tempfile
import unittest

from absl.testing import parameterized
import numpy as np

from bamboo_jax import base
from bamboo_jax.data import source as source_lib

_HAS_TOKENIZERS = importlib.util.find_spec("tokenizers") is not None


class SourceTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    (self.root / "a.txt").write_text("".join(map(str, range(500))))
    self.pattern = str(self.root / "*.txt")

  def _make(self, **options):
    options = {"pattern": self.pattern, "sequence_length": 8} | options
    return source_lib.make_source("text_files", **options)

  def test_text_files(self):
    text = self._make(heldout_fraction=0.1)
    self.assertEqual(text.vocab_size, 256)
    # 1390 bytes, of which 139 are held out; each part ends with a zero.
    self.assertEqual(text.samples_per_epoch, 1251 // 8)
    self.assertEqual(text.num_heldout, 139 // 8)
    content = (self.root / "a.txt").read_bytes()
    heldout = text.heldout_batch(range(17))["inputs"]
    self.assertEqual(bytes(heldout.astype(np.uint8)), content[1251:][:136])
    self.assertEqual(
        text.fingerprint,
        {
            "source": "text_files",
            "text_sha256": text.manifest.sha256,
            "sequence_length": 8,
            "heldout_fraction": 0.1,
            "tokens": "bytes",
            "vocab_size": 256,
        },
    )

  def test_another_text_has_another_fingerprint(self):
    before = self._make().fingerprint
    self.assertEqual(self._make().fingerprint, before)
    with open(self.root / "a.txt", "a") as file:
      file.write(".")
    self.assertNotEqual(self._make().fingerprint, before)

  @unittest.skipUnless(_HAS_TOKENIZERS, "the extra `bpe` is not installed")
  def test_bpe(self):
    text = self._make(tokens="bpe", vocab_size=300)
    self.assertEqual(text.vocab_size, 300)
    self.assertGreater(text.batch([0], seed=0)["inputs"].max(), 255)
    self.assertEqual(text.fingerprint["tokens"], "bpe")

  @unittest.skipUnless(_HAS_TOKENIZERS, "the extra `bpe` is not installed")
  def test_bpe_does_not_see_the_heldout_text(self):
    file = self.root / "a.txt"
    before = self._make(tokens="bpe", vocab_size=300, heldout_fraction=0.1)
    content = file.read_bytes()
    file.write_bytes(content[:-100] + b"ab" * 50)
    after = self._make(tokens="bpe", vocab_size=300, heldout_fraction=0.1)
    self.assertNotEqual(after.manifest.sha256, before.manifest.sha256)
    self.assertEqual(
        after.fingerprint["vocab_sha256"], before.fingerprint["vocab_sha256"]
    )

  def test_stdlib_text(self):
    text = source_lib.make_source("stdlib_text", sequence_length=128)
    self.assertBetween(text.manifest.num_bytes, 4e6, 20e6)
    self.assertEqual(text.vocab_size, 256)
    self.assertGreater(text.num_heldout, 500)
    self.assertLess(text.num_heldout, 0.021 * text.samples_per_epoch)

  def test_none_stands_for_the_default(self):
    # So one set of options can serve all sources.
    chain = source_lib.make_source(
        "synthetic", sequence_length=8, vocab_size=None, pattern=None
    )
    self.assertEqual(
        chain.fingerprint,
        {
            "source": "synthetic",
            "sequence_length": 8,
            "vocab_size": 64,
            "branching": 4,
            "chain_seed": 0,
            "num_heldout": 1024,
        },
    )

  @parameterized.parameters(
      ("stdlib_txt", {}, "Unknown data source .*did you mean 'stdlib_text'"),
      ("synthetic", {"branchin": 3}, "'branchin'; did you mean 'branching'"),
      ("synthetic", {"branchin": None}, "did you mean 'branching'"),
      ("synthetic", {"pattern": "*"}, "Unknown .* 'synthetic' 'pattern'"),
      ("stdlib_text", {"pattern": "*"}, "Unknown .* 'stdlib_text' 'pattern'"),
      ("text_files", {}, "'text_files' needs the option 'pattern'"),
      ("text_files", {"articles": 1}, "'articles' .* must be bool, got 1"),
      ("synthetic", {"sequence_length": None}, "needs .* 'sequence_length'"),
      ("text_files", {"pattern": "", "tokens": "byte"}, "did you mean 'bytes'"),
      ("text_files", {"pattern": "", "vocab_size": 300}, "_size=256, got 300"),
      ("text_files", {"pattern": "", "tokens": "bpe"}, "needs .* 'vocab_size'"),
      (
          *("text_files", {"pattern": "", "heldout_fraction": 1.0}),
          "heldout_fraction must be from 0 to below 1, got 1.0",
      ),
  )
  def test_refuses(self, name, options, message):
    options = {"sequence_length": 8} | options
    if "pattern" in options and name == "text_files":
      options["pattern"] = self.pattern
    with self.assertRaisesRegex(ValueError, message):
      source_lib.make_source(name, **options)

  def test_too_short_names_the_file(self):
    with self.assertRaisesRegex(base.DataError, "too short: .*a.txt"):
      self._make(sequence_length=2000)
