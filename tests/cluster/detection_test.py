"""Silence is a death when it is long, as gaps and limits go."""

from absl.testing import parameterized

from bamboo_jax import config
from bamboo_jax.cluster import messages
from bamboo_jax.cluster.agent import watch as watch_lib

_LIMITS = config.ClusterSection(
    stopped_secs=0.5,
    least_silence_secs=1.0,
    most_silence_secs=5.0,
    silence_factor=4.0,
    start_silence_secs=20.0,
    no_progress_secs=30.0,
)


class SilenceTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ("steady", (0.1, 0.2, 0.3), 1.0),
      ("a_long_gap_raises_the_limit", (0.1, 0.9), 3.2),
      ("also_if_others_came_since", (0.1, 0.9, 1.0, 1.1), 3.2),
      ("not_without_end", (0.1, 9.0), 5.0),
  )
  def test_limit(self, beats, limit):
    silence = watch_lib.Silence(0.0, least_secs=1.0, factor=4.0, most_secs=5.0)
    for now in beats:
      silence.beat(now)
    self.assertAlmostEqual(silence.limit_secs, limit)
    self.assertFalse(silence.is_over(beats[-1] + limit - 1e-6))
    self.assertTrue(silence.is_over(beats[-1] + limit + 1e-6))

  def test_excuse(self):
    silence = watch_lib.Silence(0.0, least_secs=1.0, factor=4.0)
    silence.excuse(8.0)
    self.assertFalse(silence.is_over(8.9))
    self.assertAlmostEqual(silence.limit_secs, 1.0)


class WatchTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.watch = watch_lib.HeartbeatWatch(_LIMITS)

  def fault(self, now, *, is_stopped=False):
    return self.watch.find_fault(now, is_stopped=is_stopped)

  def beat(self, progress, now, *, is_waiting=False):
    self.watch.note_worker(now)
    self.watch.note_progress(messages.Beat(progress, is_waiting), now)

  def hangs(self, now):
    self.watch.note_worker(now)
    return "made no progress" in self.fault(now)

  def test_a_worker_that_starts_may_be_silent_for_longer(self):
    self.assertEqual(self.fault(19.0), "")
    self.assertIn("silent for 20.0 s", self.fault(21.0))
    self.watch.begin(19.0, is_ready=True)
    self.assertEqual(self.fault(23.9), "")
    self.assertIn("silent for 5.0 s", self.fault(24.1))

  def test_a_worker_that_imports_on_a_busy_machine_is_not_silent(self):
    for now in (15.0, 30.0, 45.0):
      self.watch.note_busy(now)
      self.assertEqual(self.fault(now + 14.0), "")
    self.assertIn("silent for 20.0 s", self.fault(66.0))
    self.watch.begin(70.0, is_ready=True)
    self.watch.note_busy(76.0)
    self.assertIn("silent for 5.0 s", self.fault(76.0))

  def test_a_worker_that_is_stopped_may_be_silent_for_the_least_time(self):
    self.watch.begin(0.0, is_ready=True)
    self.assertEqual(self.fault(0.4, is_stopped=True), "")
    self.assertIn("stopped for 0.5 s", self.fault(0.6, is_stopped=True))

  def pass_time(self, first, last):
    """Looks around ten times a second."""
    for tenth in range(round(10 * first), round(10 * last) + 1):
      self.watch.tick(tenth / 10)

  def test_agents(self):
    self.watch.add("a", 0.0)
    self.watch.add("b", 0.0)
    self.pass_time(0.1, 0.5)
    self.watch.note("a", 0.5)
    self.assertEqual(self.watch.find_quiet(0.5), ["b"])
    self.pass_time(0.6, 1.2)
    self.assertEqual(self.watch.find_silent(1.2), {"b": "its agent was silent for 1.0 s"})
    self.watch.drop("b")
    self.watch.note("b", 1.3)
    self.assertEqual(self.watch.find_silent(1.4), {})

  def test_time_away_counts_for_little(self):
    self.watch.add("a", 0.0)
    self.pass_time(0.1, 0.5)
    self.watch.tick(9.0)
    self.assertEqual(self.watch.find_silent(9.1), {})
    # Yet who is away again and again finds a silence.
    for second in range(10, 18):
      self.watch.tick(second)
    self.assertEqual(self.watch.find_silent(17.0).keys(), {"a"})

  def test_the_limit_of_progress_follows_the_gaps(self):
    self.watch.begin(0.0, is_ready=True)
    self.beat(1, 1.0)
    self.assertFalse(self.hangs(30.9))
    self.assertTrue(self.hangs(31.1))
    self.beat(2, 11.0)
    self.assertFalse(self.hangs(50.9))  # 4 times the gap of 10 s.
    self.assertTrue(self.hangs(51.1))

  def test_a_worker_that_waits_does_not_hang(self):
    self.watch.begin(0.0, is_ready=True)
    self.beat(1, 1.0, is_waiting=True)
    self.beat(1, 99.0, is_waiting=True)
    self.assertFalse(self.hangs(99.0))
    self.beat(1, 100.0)
    self.beat(1, 129.0)
    self.assertFalse(self.hangs(129.0))
    self.assertTrue(self.hangs(130.1))
