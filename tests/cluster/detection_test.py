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


class WatchTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.watch = watch_lib.HeartbeatWatch(_LIMITS)

  @parameterized.named_parameters(
      # What happens at a second, and what is then said of the worker.
      ("that_starts_may_be_silent_for_longer", "19 =; 21 = was silent for 20.0 s"),
      ("that_is_ready", "19 ready; 23.9 =; 24.1 = was silent for 5.0 s"),
      (
          "that_imports_on_a_busy_machine_is_not_silent",
          "15 busy; 29 =; 30 busy; 44 =; 45 busy; 59 =; 66 = was silent for 20.0 s",
      ),
      ("that_is_ready_beats", "70 ready; 76 busy; 76 = was silent for 5.0 s"),
      (
          "that_is_stopped_may_be_silent_for_the_least_time",
          "0 ready; 0.4 stopped; 0.6 stopped was stopped for 0.5 s",
      ),
      (
          "has_a_limit_of_progress_that_follows_the_gaps",
          "0 ready; 1 beat 1; 30.9 beat 1; 30.9 =; 31.1 beat 1; "
          "31.1 = made no progress for 30 s, and waited for nobody; "
          "11 beat 2; 50.9 beat 2; 50.9 =; 51.1 beat 2; "
          "51.1 = made no progress for 40 s, and waited for nobody",
      ),
      (
          "that_waits_does_not_hang",
          "0 ready; 1 beat 1 waits; 99 beat 1 waits; 99 =; 100 beat 1; 129.5 beat 1; 129.5 =; "
          "130.1 beat 1; 130.1 = made no progress for 30 s, and waited for nobody",
      ),
  )
  def test_worker(self, course):
    for line in course.split("; "):
      secs, what, *rest = line.split(maxsplit=2)
      now, rest = float(secs), "".join(rest)
      if what == "ready":
        self.watch.begin(now, is_ready=True)
      elif what == "busy":
        self.watch.note_busy(now)
      elif what == "beat":
        progress, *waits = rest.split()
        self.watch.note_worker(now)
        self.watch.note_progress(messages.Beat(int(progress), bool(waits)), now)
      else:
        fault = self.watch.find_fault(now, is_stopped=what == "stopped")
        self.assertEqual(fault, rest and f"its worker {rest}", msg=line)

  def pass_time(self, first, last):
    """Looks around ten times a second."""
    for tenth in range(round(10 * first), round(10 * last) + 1):
      self.watch.tick(tenth / 10)

  def test_agents(self):
    self.watch.add("a", 0.0)
    self.watch.add("b", 0.0)
    self.pass_time(0.1, 0.5)
    self.assertTrue(self.watch.note("a", 0.5))
    self.assertFalse(self.watch.note("a", 0.5))
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
