"""Sources by name; those of arrays and of records, also from a function of the user's own."""

from absl.testing import parameterized
import numpy as np

from bamboo_jax import base
from bamboo_jax.data import corpus, samples, source as source_lib


def make_own(*, num_samples: int, sequence_length: int):
  places = np.arange(num_samples * sequence_length)
  return {"inputs": places.reshape(num_samples, sequence_length)}


def make_nothing():
  return None


class SourceTest(parameterized.TestCase):

  def test_a_text(self):
    text = source_lib.make_source("stdlib_text", sequence_length=8, heldout_fraction=0.1)
    self.assertBetween(text.num_heldout / text.samples_per_epoch, 0.11, 0.112)
    want = dict(source="stdlib_text", text_sha256=corpus.find_sha256(text.manifest))
    want |= dict(sequence_length=8, heldout_fraction=0.1, tokens="bytes", vocab_size=256)
    self.assertEqual(text.fingerprint, want)

  @parameterized.parameters(
      ("stdlib_text", {}), ("synthetic", {}), ("synthetic", {"num_masked": 2, "vocab_size": 64})
  )
  def test_a_sample_depends_on_seed_and_index_only(self, name, options):
    """So its order is that of any layout; of mixtures see `files_test`."""
    source = source_lib.make_source(name, sequence_length=20, **options)
    some, whole = (source.batch(indices, seed=3) for indices in ([9, 4, 9], range(10)))
    for key, array in some.items():
      np.testing.assert_array_equal(array, whole[key][[9, 4, 9]])
      self.assertEqual(array.dtype, np.int32)
    heldout, alone = (source.heldout_batch(indices)["inputs"] for indices in ([9, 4], [4]))
    np.testing.assert_array_equal(heldout[1:], alone)
    others = [*some["inputs"][:2], *heldout, *source.batch([9, 4], seed=4)["inputs"]]
    self.assertLen({*map(bytes, others)}, 6)

  def test_none_stands_for_the_default(self):
    # So one set of options can serve all sources.
    chain = source_lib.make_source("synthetic", sequence_length=8, vocab_size=None, path=None)
    want = dict(source="synthetic", sequence_length=8, vocab_size=64, branching=4)
    self.assertEqual(chain.fingerprint, want | dict(chain_seed=0, num_heldout=1024))

  @parameterized.parameters(
      ("stdlib_txt", {}, "Unknown data source .*did you mean 'stdlib_text'"),
      ("synthetic", {"branchin": None}, "did you mean 'branching'"),
      ("stdlib_text", {"pattern": "*"}, "Unknown .* 'stdlib_text' 'pattern'"),
      ("files", {}, "'files' needs the option 'path'"),
      ("synthetic", {"sequence_length": None}, "needs .* 'sequence_length'"),
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

  def test_source_of_the_users_own(self):
    name = f"{__file__}:make_own"
    shape = {"sequence_length": 4, "vocab_size": 9}
    source = source_lib.make_source(name, shape, num_samples=5)
    self.assertEqual(source.batch([0], seed=0)["inputs"].shape, (1, 4))
    with self.assertRaisesRegex(ValueError, "'num_sample'; did you mean 'num_s"):
      source_lib.make_source(name, shape, num_sample=5)
    with self.assertRaisesRegex(ValueError, "must return a Source, arrays"):
      source_lib.make_source(f"{__file__}:make_nothing")


class ArraysTest(parameterized.TestCase):

  def test_each_epoch_visits_all(self):
    x = np.arange(10)
    source = samples.from_arrays({"x": x, "y": x * 0.5}, heldout_fraction=0.3)
    self.assertEqual((source.samples_per_epoch, source.num_heldout), (7, 3))
    batch = source.batch(range(14), seed=1)
    first, second = batch["x"][:7].tolist(), batch["x"][7:].tolist()
    self.assertEqual([sorted(first), sorted(second)], [[*range(7)]] * 2)
    self.assertNotEqual(first, second)
    np.testing.assert_array_equal(batch["y"], batch["x"] / 2)
    self.assertEqual(source.heldout_batch([0, 2])["x"].tolist(), [7, 9])
    self.assertEqual([str(a.dtype) for a in batch.values()], ["int32", "float32"])

  def test_fingerprint_is_that_of_the_content(self):
    prints = [
        samples.from_arrays(given).fingerprint["sha256"]
        for given in (
            {"x": np.zeros(4)},
            {"x": np.zeros(4)},
            {"y": np.zeros(4)},
            {"x": np.zeros((4, 1))},
            {"x": np.array([0, 0, 0, 1.0])},
        )
    ]
    self.assertEqual(prints[0], prints[1])
    self.assertLen({*prints}, 4)

  @parameterized.named_parameters(
      ("sizes", {"x": np.zeros(3), "y": np.zeros(4)}, "'x': 3, 'y': 4"),
      ("empty", {"x": np.zeros((0, 2))}, "at least one"),
      ("scalar", {"x": np.float32(1)}, "'x': 0"),
      ("text", {"x": np.array(["a"])}, "'x' .*must hold numbers"),
      ("large", {"x": np.array([1 << 40])}, "do not fit int32"),
  )
  def test_refuses(self, given, message):
    with self.assertRaisesRegex(base.DataError, message):
      samples.from_arrays(given)

  def test_order_of_bytes_is_that_of_the_machine(self):
    x = np.arange(4, dtype=">f4")
    for source in (samples.from_arrays({"x": x}), samples.from_records([{"x": one} for one in x])):
      batch = source.batch(range(4), seed=0)["x"]
      self.assertEqual((batch.dtype.byteorder, sorted(batch.tolist())), ("=", [0, 1, 2, 3]))

  @parameterized.parameters(
      ([(1, 2)], "Record 0 .* must be a dict of arrays, .* got tuple"),
      (
          [{"x": [1]}, {"x": [1, 2]}],
          r"Record 1 .* of record 0, got {'x': \(2,\)} and {'x': \(1,\)}",
      ),
      ([{"x": 1}, {"y": 1}], r"Record 1 .* got {'y': \(\)} and {'x': \(\)}"),
  )
  def test_refuses_records(self, records, message):
    with self.assertRaisesRegex(base.DataError, message):
      samples.from_records(records)
