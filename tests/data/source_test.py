from absl.testing import parameterized

from bamboo_jax.data import corpus, source as source_lib


class SourceTest(parameterized.TestCase):

  def test_a_text(self):
    text = source_lib.make_source("stdlib_text", sequence_length=8, heldout_fraction=0.1)
    self.assertBetween(text.num_heldout / text.samples_per_epoch, 0.11, 0.112)
    want = dict(source="stdlib_text", text_sha256=corpus.find_sha256(text.manifest))
    want |= dict(sequence_length=8, heldout_fraction=0.1, tokens="bytes", vocab_size=256)
    self.assertEqual(text.fingerprint, want)

  def test_none_stands_for_the_default(self):
    # So one set of options can serve all sources.
    chain = source_lib.make_source("synthetic", sequence_length=8, vocab_size=None, path=None)
    want = dict(source="synthetic", sequence_length=8, vocab_size=64, branching=4)
    self.assertEqual(chain.fingerprint, want | dict(chain_seed=0, num_heldout=1024))

  @parameterized.parameters(
      ("stdlib_txt", {}, "Unknown data source .*did you mean 'stdlib_text'"),
      ("synthetic", {"branchin": 3}, "'branchin'; did you mean 'branching'"),
      ("synthetic", {"branchin": None}, "did you mean 'branching'"),
      ("synthetic", {"pattern": "*"}, "Unknown .* 'synthetic' 'pattern'"),
      ("stdlib_text", {"pattern": "*"}, "Unknown .* 'stdlib_text' 'pattern'"),
      ("files", {}, "'files' needs the option 'path'"),
      ("files", {"path": 1}, "'path' .* must be str, got 1"),
      ("synthetic", {"sequence_length": None}, "needs .* 'sequence_length'"),
      ("stdlib_text", {"token": "byte"}, "did you mean 'tokenizer'"),
      (
          "files",
          {"path": "", "heldout_fraction": 1.0},
          "heldout_fraction must be from 0 to below 1, got 1.0",
      ),
  )
  def test_refuses(self, name, options, message):
    options = {"sequence_length": 8} | options
    with self.assertRaisesRegex(ValueError, message):
      source_lib.make_source(name, **options)
