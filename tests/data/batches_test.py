import hashlib
import pathlib
import tempfile

from absl.testing import parameterized
import numpy as np

from bamboo_jax.data import batches as batches_lib, source as source_lib


class _Numbers:
  """A `source.Source` whose samples are their own indices."""

  num_heldout = 20

  def batch(self, indices, *, seed):
    return {"inputs": np.array(indices), "seed": np.full(len(indices), seed)}

  def heldout_batch(self, indices):
    return {"inputs": -np.array(indices)}


def _make_batches(**changes):
  options = dict(source=_Numbers(), seed=7, num_microbatches=3, microbatch_size=2)
  return batches_lib.Batches(**(options | changes))


class BatchesTest(parameterized.TestCase):

  @parameterized.parameters(
      (0, 0, [0, 1]),
      (0, 2, [4, 5]),
      (1, 0, [6, 7]),
      (10**9, 1, [6 * 10**9 + 2, 6 * 10**9 + 3]),
      (np.int32(10**9), np.int32(1), [6 * 10**9 + 2, 6 * 10**9 + 3]),
  )
  def test_samples_of_a_microbatch(self, step, microbatch, samples):
    batch = _make_batches().microbatch(step, microbatch)
    self.assertEqual(batch["inputs"].tolist(), samples)
    self.assertEqual(batch["seed"].tolist(), [7, 7])

  @parameterized.parameters((1, 12), (2, 6), (3, 4), (12, 1))
  def test_a_step_has_the_same_samples_however_it_is_cut(self, number, size):
    cut = _make_batches(num_microbatches=number, microbatch_size=size)
    parts = [cut.microbatch(5, m)["inputs"] for m in range(number)]
    self.assertEqual(np.concatenate(parts).tolist(), list(range(60, 72)))

  def test_evaluation(self):
    batches = _make_batches()
    got = [
        batches.eval_microbatch(batch, microbatch)["inputs"].tolist()
        for batch in range(3)
        for microbatch in range(3)
    ]
    self.assertEqual(got, [[-i, -i - 1] for i in range(0, 18, 2)])

  @parameterized.parameters((1, 4), (3, 4), (4, 4), (5, 4), (11, 4), (7, 1), (0, 4))
  def test_evaluation_counts_each_sample_once(self, num_heldout, size):
    source = _Numbers()
    source.num_heldout = num_heldout
    batches = _make_batches(source=source, microbatch_size=size)
    counts = np.zeros(num_heldout)
    for number, weight in enumerate(batches.eval_weights(16)):
      arrays = batches.eval_microbatch(*divmod(number, 3))
      np.add.at(counts, -arrays["inputs"], weight)
    self.assertEqual(counts.tolist(), [1.0] * num_heldout)

  @parameterized.parameters((1, [1]), (2, [1, 1]), (3, [1, 1, 1, -0.75]))
  def test_evaluation_of_at_most_some_microbatches(self, most, weights):
    source = _Numbers()
    source.num_heldout = 9
    batches = _make_batches(source=source, microbatch_size=4)
    self.assertEqual(batches.eval_weights(most), weights)

  @parameterized.parameters((None, ["inputs", "seed"]), (("seed",), ["seed"]), ((), []))
  def test_keys(self, keys, expected):
    self.assertEqual(list(_make_batches().microbatch(0, 0, keys)), expected)

  def test_arrays_are_read_only(self):
    batches = _make_batches()
    for batch in (batches.microbatch(0, 0), batches.eval_microbatch(0, 0)):
      with self.assertRaisesRegex(ValueError, "read-only"):
        batch["inputs"][0] = 1

  @parameterized.parameters(
      ("microbatch", (-1, 0), "must be at least 0, .*got -1 and 0"),
      ("microbatch", (0, -1), "must be at least 0, .*got 0 and -1"),
      ("microbatch", (0, 3), "below num_microbatches=3, got 0 and 3"),
      ("microbatch", (0, 0, ("inputz",)), "did you mean 'inputs'"),
      ("eval_microbatch", (0, 3), "below num_microbatches=3, got 0 and 3"),
  )
  def test_refuses_arguments(self, method, arguments, message):
    with self.assertRaisesRegex(ValueError, message):
      getattr(_make_batches(), method)(*arguments)

  @parameterized.parameters(
      ("seed", -1), ("seed", 2**63), ("num_microbatches", 0), ("microbatch_size", 0)
  )
  def test_refuses_sizes(self, name, value):
    with self.assertRaisesRegex(ValueError, f"{name} must be.*got {value}"):
      _make_batches(**{name: value})

  def test_frozen(self):
    # If this changes, then so does the data of every run: say so in the notes
    # of the release.
    folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    lines = [f"The square of {i} is {i * i}.\n" for i in range(400)]
    (folder / "a.txt").write_text("".join(lines[:100]), newline="")
    (folder / "b.txt").write_text("".join(lines[100:]), newline="")
    text = source_lib.make_source(f"{folder}/*.txt", sequence_length=24, cache_dir=folder / "cache")
    batches = _make_batches(source=text)
    batch = batches.microbatch(0, 0)
    self.assertEqual(
        [bytes(row.astype(np.uint8)) for row in batch["inputs"]],
        [b"of 181 is 32761.\nThe squ", b"33 is 1089.\nThe square o"],
    )
    step = [batches.microbatch(1, microbatch) for microbatch in range(3)]
    digest = hashlib.sha256()
    for name in ("inputs", "targets"):
      for arrays in step:
        digest.update(arrays[name].astype("<i4").tobytes())
    self.assertEqual(
        digest.hexdigest(), "e33cf5ec228b5e8c15c4690d435a8baec3c3ff60e4e9f78171c886c82601d64d"
    )
