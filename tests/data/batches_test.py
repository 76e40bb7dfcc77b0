from concurrent import futures
import hashlib
import queue
import threading

from absl.testing import parameterized
import numpy as np

from bamboo_jax.data import batches as batches_lib, source as source_lib
from tests import folders

_PATIENCE_SECS = 30.0  # Only a test that fails waits for so long.


class _Numbers:
  """A `source.Source` whose samples are their own indices; those in `broken` cannot be read.

  `finished` gets the first index of each batch when it has been read.
  """

  def __init__(self, broken=(), num_heldout=20):
    self.broken, self.num_heldout = set(broken), num_heldout
    self.finished = queue.Queue()

  def batch(self, indices, *, seed):
    try:
      for index in indices:
        if index in self.broken:
          raise OSError(f"sample {index}")
      return {"inputs": np.array(indices), "targets": np.array(indices) + seed}
    finally:
      self.finished.put(indices[0])

  def heldout_batch(self, indices):
    return {"inputs": -np.array(indices)}

  def take_finished(self, count):
    """Waits for `count` batches; returns their first indices in order."""
    return [self.finished.get(timeout=_PATIENCE_SECS) for _ in range(count)]


def _make_batches(**changes):
  options = dict(source=_Numbers(), seed=7, num_microbatches=3, microbatch_size=2)
  return batches_lib.Batches(**(options | changes))


def _make_step(source):
  """Returns batches whose microbatch m of step s starts with sample 4 s + 2 m."""
  return _make_batches(source=source, seed=1, num_microbatches=2, microbatch_size=2)


class BatchesTest(folders.FolderCase):

  @parameterized.parameters(
      (0, 0, [0, 1]),
      (0, 2, [4, 5]),
      (1, 0, [6, 7]),
      (np.int32(10**9), np.int32(1), [6 * 10**9 + 2, 6 * 10**9 + 3]),
  )
  def test_samples_of_a_microbatch(self, step, microbatch, samples):
    batch = _make_batches().microbatch(step, microbatch)
    self.assertEqual(batch["inputs"].tolist(), samples)
    self.assertEqual((batch["targets"] - batch["inputs"]).tolist(), [7, 7])

  @parameterized.parameters((1, 12), (3, 4))
  def test_a_step_has_the_same_samples_however_it_is_cut(self, number, size):
    cut = _make_batches(num_microbatches=number, microbatch_size=size)
    parts = [cut.microbatch(5, m)["inputs"] for m in range(number)]
    self.assertEqual(np.concatenate(parts).tolist(), list(range(60, 72)))

  @parameterized.parameters((1, 4), (3, 4), (4, 4), (5, 4), (11, 4), (7, 1), (0, 4))
  def test_evaluation_counts_each_sample_once(self, num_heldout, size):
    batches = _make_batches(source=_Numbers(num_heldout=num_heldout), microbatch_size=size)
    counts, order = np.zeros(num_heldout), []
    for number, weight in enumerate(batches.eval_weights(16)):
      arrays = batches.eval_microbatch(*divmod(number, 3))
      np.add.at(counts, -arrays["inputs"], weight)
      order += [*-arrays["inputs"]]
    self.assertEqual(order, sorted(order))
    self.assertEqual(counts.tolist(), [1.0] * num_heldout)

  @parameterized.parameters((1, [1]), (2, [1, 1]), (3, [1, 1, 1, -0.75]))
  def test_evaluation_of_at_most_some_microbatches(self, most, weights):
    batches = _make_batches(source=_Numbers(num_heldout=9), microbatch_size=4)
    self.assertEqual(batches.eval_weights(most), weights)

  @parameterized.parameters((None, ["inputs", "targets"]), (("targets",), ["targets"]), ((), []))
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

  def test_frozen(self):
    # If this changes, then so does the data of every run: say so in the notes
    # of the release.
    folder = self.folder
    lines = [f"The square of {i} is {i * i}.\n" for i in range(400)]
    (folder / "a.txt").write_text("".join(lines[:100]), newline="")
    (folder / "b.txt").write_text("".join(lines[100:]), newline="")
    text = source_lib.make_source(f"{folder}/*.txt", sequence_length=24, cache_dir=folder / "cache")
    batches = _make_batches(source=text)
    step = [batches.microbatch(1, microbatch) for microbatch in range(3)]
    digest = hashlib.sha256()
    for name in ("inputs", "targets"):
      for arrays in step:
        digest.update(arrays[name].astype("<i4").tobytes())
    self.assertEqual(
        digest.hexdigest(), "e33cf5ec228b5e8c15c4690d435a8baec3c3ff60e4e9f78171c886c82601d64d"
    )


class PrefetchTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ("in_order", [(s, m) for s in range(6) for m in range(2)]),
      ("by_several_stages", [(s, m) for s in (0, 1) for m in (0, 0, 1, 0, 1)]),
      ("again", [(0, 0), (0, 1), (1, 0), (0, 0), (0, 1), (1, 0), (1, 1)]),
      ("out_of_order", [(3, 1), (0, 0), (90, 1), (3, 0), (91, 0), (2, 1)]),
  )
  def test_same_as_without(self, keys):
    batches = _make_step(_Numbers())
    for first_step in (0, 3):
      for num_steps_ahead in (0, 1, 3):
        with batches_lib.Prefetcher(
            batches, first_step=first_step, num_steps_ahead=num_steps_ahead
        ) as prefetcher:
          for key in keys:
            np.testing.assert_equal(prefetcher.microbatch(*key), batches.microbatch(*key))

  def test_is_ahead_by_whole_steps(self):
    source = _Numbers()
    with batches_lib.Prefetcher(_make_step(source), first_step=5, num_steps_ahead=1) as prefetcher:
      # Before anything is asked for.
      self.assertEqual(source.take_finished(4), [20, 22, 24, 26])
      # It is bounded: nothing else until the next step is asked for, and
      # nothing twice.
      prefetcher.microbatch(5, 1)
      prefetcher.microbatch(5, 0)
      prefetcher.microbatch(6, 0)
      self.assertEqual(source.take_finished(2), [28, 30])
      # The step before is still there; an older one is not.
      prefetcher.microbatch(7, 0)
      self.assertEqual(source.take_finished(2), [32, 34])
      prefetcher.microbatch(6, 1)
      prefetcher.microbatch(5, 0)
      self.assertEqual(source.take_finished(1), [20])
      # Which leaves step 5 to be completed, and step 6 as it is.
      self.assertEqual(source.take_finished(1), [22])
    self.assertTrue(source.finished.empty())

  def test_what_is_asked_for_comes_first(self):
    source = _Numbers()
    with batches_lib.Prefetcher(_make_step(source)) as prefetcher:
      source.take_finished(4)
      prefetcher.microbatch(7, 1)
      self.assertEqual(source.take_finished(4), [30, 28, 32, 34])

  def test_what_takes_long_is_made_where_it_was_asked_for(self):
    source, made = _Numbers(), queue.Queue()
    batch = source.batch

    def make(index):
      made.put(index)
      return np.array([index])

    source.batch = lambda indices, seed: {
        **batch(indices, seed=seed),
        "images": lambda: make(indices[0]),
    }
    with batches_lib.Prefetcher(_make_step(source)) as prefetcher:
      source.take_finished(4)
      self.assertTrue(made.empty())
      for _ in range(2):
        got = prefetcher.microbatch(0, 1, ("images",))
        np.testing.assert_equal(got, {"images": np.array([2])})  # And no other array.
      prefetcher.microbatch(1, 0, ("inputs",))
      source.take_finished(2)  # Of step 2; microbatch 1 has its images.
      self.assertEqual([made.get(timeout=_PATIENCE_SECS) for _ in "ab"], [2, 10])
    self.assertTrue(made.empty())

  def test_what_has_failed_is_read_once_when_it_is_good(self):
    source = _Numbers(broken=[2])
    with batches_lib.Prefetcher(_make_step(source)) as prefetcher:
      source.take_finished(4)
      with self.assertRaisesRegex(OSError, "sample 2"):
        prefetcher.microbatch(0, 1)
      source.broken.clear()
      for _ in range(2):
        self.assertEqual(prefetcher.microbatch(0, 1)["inputs"].tolist(), [2, 3])
      self.assertEqual(source.take_finished(1), [2])
    self.assertTrue(source.finished.empty())

  def test_an_error_that_nobody_asked_for_is_logged(self):
    source = _Numbers(broken=[6])
    prefetcher = batches_lib.Prefetcher(_make_step(source))
    source.take_finished(4)
    with self.assertLogs(level="WARNING") as logs:
      prefetcher.close()
    (line,) = logs.output
    self.assertIn("(step, microbatch)=(1, 1), failed: OSError", line)

  def test_close(self):
    before = set(threading.enumerate())
    with self.assertRaisesRegex(KeyError, "mine"):
      with batches_lib.Prefetcher(_make_step(_Numbers())) as prefetcher:
        (thread,) = set(threading.enumerate()) - before
        raise KeyError("mine")
    self.assertFalse(thread.is_alive())
    prefetcher.close()
    with self.assertRaisesRegex(ValueError, "closed"):
      prefetcher.microbatch(0, 0)

  def test_several_callers(self):
    batches = _make_step(_Numbers(broken=[17]))
    keys = [(s, m) for s in range(8) for m in range(2)]

    def ask(turn):
      got = {}
      for key in keys[turn:] + keys[:turn]:
        try:
          got[key] = prefetcher.microbatch(*key)["inputs"][0]
        except OSError:
          got[key] = "failed"
      return got

    expected = {(s, m): 4 * s + 2 * m for s, m in keys} | {(4, 0): "failed"}
    with batches_lib.Prefetcher(batches) as prefetcher, futures.ThreadPoolExecutor(4) as pool:
      for got in pool.map(ask, (0, 3, 7, 11), timeout=_PATIENCE_SECS):
        self.assertEqual(got, expected)
