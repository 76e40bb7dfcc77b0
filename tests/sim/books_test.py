"""Steps and saves between two events are counted as if they were played."""

from absl.testing import parameterized
import hypothesis
from hypothesis import strategies as st

from bamboo_jax import config as config_lib
from bamboo_jax.sim import books as books_lib, times as times_lib
from tests import profiles


def make_books(saves=None, *, step_secs=10.0, live=4, training=3):
  books = books_lib.Books(saves or make_saves(0.0))
  books.set_nodes(live=live, training=training)
  books.train(
      times_lib.StepCost(
          step_secs,
          num_samples=8,
          num_dropped=2,
          shares=times_lib.split_time(whole=4, useful=2, redundant=1),
      )
  )
  return books


def make_saves(every_secs, save_secs=0.0, stall_secs=0.0):
  return config_lib.DurationsSection(
      save_every_secs=every_secs, save_secs=save_secs, stall_secs=stall_secs
  )


def play(saves, step_secs, until_secs):
  """Plays steps one by one, in whole thousandths of a second.

  Returns the steps done, the time in the step in flight, the time that saves
  stalled, and the number of steps of the last safe state.
  """
  milli = lambda secs: round(1000 * secs)
  step, end = milli(step_secs), milli(until_secs)
  now, steps, stalled, safe, pending = 0, 0, 0, 0, None
  every = milli(max(saves.save_every_secs, saves.save_secs))
  next_save = every
  while now + step <= end:
    now, steps = now + step, steps + 1
    if pending and pending[0] <= now:
      safe, pending = pending[1], None
    if now >= next_save:
      pending = now + milli(saves.save_secs), steps
      next_save = now + every
      stall = min(milli(saves.stall_secs), end - now)
      now, stalled = now + stall, stalled + stall
  if pending and pending[0] <= end:
    safe = pending[1]
  return steps, (end - now) / 1000, stalled / 1000, safe


class BooksTest(parameterized.TestCase):

  def test_a_long_stretch(self):
    books = make_books()
    books.advance(200_005.0)
    account = books.totals.charge(profiles.PRICE)
    self.assertEqual(books.num_steps, 20_000)
    self.assertEqual(books.elapsed_secs, 5.0)
    self.assertEqual(books.step_end_secs, 200_010.0)
    self.assertEqual(account.num_samples, 160_000)
    self.assertEqual(books.num_dropped, 40_000)
    shares = account.node_time.shares()
    self.assertAlmostEqual(shares["useful"], 0.5 * 0.75)
    self.assertAlmostEqual(shares["redundant"], 0.25 * 0.75)
    self.assertAlmostEqual(shares["bubble"], 0.25 * 0.75)
    self.assertAlmostEqual(shares["idle"], 0.25)

  def test_losing_the_step_in_flight(self):
    books = make_books()
    books.advance(27.0)
    books.lose_step()
    books.pause("recovery")
    books.advance(30.0)
    account = books.totals.charge(profiles.PRICE)
    self.assertEqual((books.num_steps, account.num_samples), (2, 16))
    self.assertAlmostEqual(account.node_time.lost, 3 * 7.0)
    self.assertAlmostEqual(account.node_time.recovery, 3 * 3.0)
    self.assertAlmostEqual(account.node_time.idle, 30.0)

  def test_a_pause_within_a_step(self):
    books = make_books()
    books.advance(4.0)
    books.pause("recovery")
    books.advance(104.0)
    books.train()
    self.assertEqual(books.step_end_secs, 110.0)
    books.advance(110.0)
    self.assertEqual((books.num_steps, books.elapsed_secs), (1, 0.0))
    self.assertAlmostEqual(books.totals.charge(profiles.PRICE).node_time.recovery, 300.0)

  def test_what_is_left_after_a_rollback(self):
    books = make_books(make_saves(60.0, 30.0))
    for now_secs in (65.0, 100.0):  # A state that was not safe is gone.
      books.advance(now_secs)
      books.roll_back()
    self.assertEqual(books.num_steps, 0)
    books = make_books(make_saves(1000.0))
    books.advance(40.0)
    books.save()
    books.advance(75.0)
    books.roll_back()
    self.assertEqual(books.num_steps, 4)

  @hypothesis.settings(max_examples=200, deadline=None, derandomize=True)
  @hypothesis.given(
      step=st.integers(1, 40),
      every=st.integers(1, 300),
      save=st.integers(0, 100),
      stall=st.integers(0, 20),
      times=st.lists(st.integers(1, 3000), min_size=1, max_size=6),
  )
  def test_as_if_played(self, step, every, save, stall, times):
    # Tenths of seconds: then a step may end when something else does.
    saves = make_saves(every / 10, save / 10, stall / 10)
    books = make_books(saves, step_secs=step / 10)
    for time in sorted(times):
      books.advance(time / 10)
    until_secs = max(times) / 10
    steps, elapsed_secs, stalled_secs, safe = play(saves, step / 10, until_secs)
    self.assertEqual(books.num_steps, steps)
    self.assertAlmostEqual(books.elapsed_secs, elapsed_secs, places=4)
    books.roll_back()
    account = books.totals.charge(profiles.PRICE)
    got = books.num_steps, account.num_samples, books.num_dropped
    self.assertEqual(got, (safe, 8 * safe, 2 * safe))
    lost_secs = until_secs - stalled_secs - safe * step / 10
    self.assertAlmostEqual(account.node_time.lost, 3 * lost_secs, places=4)
    self.assertAlmostEqual(account.node_time.checkpoint, 3 * stalled_secs, places=4)


class StepCostTest(parameterized.TestCase):

  def test_a_step_takes_time(self):
    with self.assertRaisesRegex(ValueError, "must be above 0"):
      times_lib.StepCost(0.0, 1.0)

  def test_shares_add_up(self):
    shares = times_lib.split_time(whole=8.0, useful=2.0, communication=5.0, redundant=4.0)
    self.assertEqual((shares.useful, shares.communication, shares.redundant), (0.25, 0.625, 0.125))
    self.assertEqual(shares.bubble, 0.0)
    self.assertEqual(times_lib.split_time(whole=8.0, useful=2.0).bubble, 0.75)
