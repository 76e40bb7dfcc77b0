from concurrent import futures
import queue
import threading

from absl.testing import parameterized
import numpy as np

from bamboo_jax.data import batches as batches_lib

_PATIENCE_SECS = 30.0  # Only a test that fails waits for so long.


class _Numbers:
  """A `source.Source` whose samples are their own indices.

  Attributes:
    broken: Samples that cannot be read.
    finished: Gets the first index of each batch when it has been read.
  """

  num_heldout = 20

  def __init__(self, broken=()):
    self.broken = set(broken)
    self.finished = queue.Queue()

  def batch(self, indices, *, seed):
    try:
      for index in indices:
        if index in self.broken:
          raise OSError(f"sample {index}")
      return {"inputs": np.array(indices), "targets": np.array(indices) + seed}
    finally:
      self.finished.put(indices[0])

  def take_finished(self, count):
    """Waits for `count` batches; returns their first indices in order."""
    return [self.finished.get(timeout=_PATIENCE_SECS) for _ in range(count)]


def _make_batches(source):
  # Microbatch m of step s starts with sample 4 s + 2 m.
  return batches_lib.Batches(source=source, seed=1, num_microbatches=2, microbatch_size=2)


class PrefetchTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ("in_order", [(s, m) for s in range(6) for m in range(2)]),
      ("by_several_stages", [(s, m) for s in (0, 1) for m in (0, 0, 1, 0, 1)]),
      ("again", [(0, 0), (0, 1), (1, 0), (0, 0), (0, 1), (1, 0), (1, 1)]),
      ("out_of_order", [(3, 1), (0, 0), (90, 1), (3, 0), (91, 0), (2, 1)]),
  )
  def test_same_as_without(self, keys):
    batches = _make_batches(_Numbers())
    for first_step in (0, 3):
      for num_steps_ahead in (0, 1, 3):
        with batches_lib.Prefetcher(
            batches, first_step=first_step, num_steps_ahead=num_steps_ahead
        ) as prefetcher:
          for key in keys:
            np.testing.assert_equal(prefetcher.microbatch(*key), batches.microbatch(*key))

  def test_is_ahead_by_whole_steps(self):
    source = _Numbers()
    with batches_lib.Prefetcher(
        _make_batches(source), first_step=5, num_steps_ahead=1
    ) as prefetcher:
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
    with batches_lib.Prefetcher(_make_batches(source)) as prefetcher:
      source.take_finished(4)
      prefetcher.microbatch(7, 1)
      self.assertEqual(source.take_finished(4), [30, 28, 32, 34])

  def test_keys(self):
    with batches_lib.Prefetcher(_make_batches(_Numbers())) as prefetcher:
      got = prefetcher.microbatch(0, 1, ("targets",))
      np.testing.assert_equal(got, {"targets": np.array([3, 4])})
      with self.assertRaisesRegex(ValueError, "num_microbatches=2, got 0 and 2"):
        prefetcher.microbatch(0, 2)
      with self.assertRaisesRegex(ValueError, "did you mean 'targets'"):
        prefetcher.microbatch(0, 1, ("target",))

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
    with batches_lib.Prefetcher(_make_batches(source)) as prefetcher:
      source.take_finished(4)
      self.assertTrue(made.empty())
      for _ in range(2):
        got = prefetcher.microbatch(0, 1, ("images",))
        self.assertEqual(got["images"].tolist(), [2])
      prefetcher.microbatch(1, 0, ("inputs",))
      source.take_finished(2)  # Of step 2; microbatch 1 has its images.
      self.assertEqual([made.get(timeout=_PATIENCE_SECS) for _ in "ab"], [2, 10])
    self.assertTrue(made.empty())

  def test_an_error_is_raised_to_who_asks(self):
    source = _Numbers(broken=[6])  # In microbatch 1 of step 1.
    with batches_lib.Prefetcher(_make_batches(source)) as prefetcher:
      source.take_finished(4)  # It has happened, and what is before is good.
      for key in ((0, 0), (0, 1), (1, 0)):
        prefetcher.microbatch(*key)
      for _ in range(2):
        with self.assertRaisesRegex(OSError, "sample 6"):
          prefetcher.microbatch(1, 1)
      prefetcher.microbatch(2, 0)
      source.broken.clear()
      got = prefetcher.microbatch(1, 1)
      self.assertEqual(got["inputs"].tolist(), [6, 7])

  def test_what_has_failed_is_read_once_when_it_is_good(self):
    source = _Numbers(broken=[2])
    with batches_lib.Prefetcher(_make_batches(source)) as prefetcher:
      source.take_finished(4)
      with self.assertRaisesRegex(OSError, "sample 2"):
        prefetcher.microbatch(0, 1)
      source.broken.clear()
      for _ in range(2):
        prefetcher.microbatch(0, 1)
      self.assertEqual(source.take_finished(1), [2])

      source.broken.add(18)  # The step is dropped while it is broken.
      prefetcher.microbatch(3, 0)
      self.assertEqual(source.take_finished(4), [12, 14, 16, 18])
      with self.assertRaisesRegex(OSError, "sample 18"):
        prefetcher.microbatch(4, 1)
      source.broken.clear()
      source.take_finished(2)
      prefetcher.microbatch(0, 0)
      source.take_finished(4)
      prefetcher.microbatch(3, 0)
      self.assertEqual(source.take_finished(4), [12, 14, 16, 18])
      prefetcher.microbatch(4, 1)
      source.take_finished(2)  # Of step 5.
    self.assertTrue(source.finished.empty())

  def test_an_error_that_nobody_asked_for_is_logged(self):
    source = _Numbers(broken=[6])
    prefetcher = batches_lib.Prefetcher(_make_batches(source))
    source.take_finished(4)
    with self.assertLogs(level="WARNING") as logs:
      prefetcher.close()
    self.assertLen(logs.output, 1)
    self.assertIn("(step, microbatch)=(1, 1), failed: OSError", logs.output[0])

  def test_an_error_that_was_raised_is_not_logged(self):
    prefetcher = batches_lib.Prefetcher(_make_batches(_Numbers(broken=[0])))
    with self.assertRaisesRegex(OSError, "sample 0"):
      prefetcher.microbatch(0, 0)
    with self.assertNoLogs(level="WARNING"):
      prefetcher.close()

  def test_close(self):
    before = set(threading.enumerate())
    with self.assertRaisesRegex(KeyError, "mine"):
      with batches_lib.Prefetcher(_make_batches(_Numbers())) as prefetcher:
        (thread,) = set(threading.enumerate()) - before
        raise KeyError("mine")
    self.assertFalse(thread.is_alive())
    prefetcher.close()
    with self.assertRaisesRegex(ValueError, "closed"):
      prefetcher.microbatch(0, 0)

  def test_several_callers(self):
    batches = _make_batches(_Numbers(broken=[17]))
    keys = [(s, m) for s in range(8) for m in range(2)]

    def ask(turn):
      got = []
      for key in keys[turn:] + keys[:turn]:
        try:
          got.append((key, prefetcher.microbatch(*key)["inputs"][0]))
        except OSError:
          got.append((key, "failed"))
      return sorted(got, key=lambda g: g[0])

    expected = [((s, m), 4 * s + 2 * m) for s, m in keys]
    expected[keys.index((4, 0))] = ((4, 0), "failed")
    with batches_lib.Prefetcher(batches) as prefetcher, futures.ThreadPoolExecutor(4) as pool:
      for got in pool.map(ask, (0, 3, 7, 11), timeout=_PATIENCE_SECS):
        self.assertEqual(got, expected)
