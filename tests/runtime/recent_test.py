"""Who is dropped, and what two threads get."""

import threading

from absl.testing import absltest

from bamboo_jax.runtime import recent


class RecentTest(absltest.TestCase):

  def test_drops_what_was_used_longest_ago(self):
    values, made = recent.Recent(2), []

    def get(key):
      return values.get(key, lambda: made.append(key) or key)

    for key in "abacab":
      self.assertEqual(get(key), key)
    self.assertEqual(made, ["a", "b", "c", "b"])

  def test_makes_another_if_it_does_not_fit(self):
    values = recent.Recent(2)
    values.get("a", lambda: 1)
    self.assertEqual(values.get("a", lambda: 2, fits=lambda v: v > 1), 2)
    self.assertEqual(values.get("a", lambda: 3), 2)

  def test_clear(self):
    values = recent.Recent(2)
    values.get("a", lambda: 1)
    values.clear()
    self.assertEqual(values.get("a", lambda: 2), 2)

  def test_threads_get_the_same(self):
    values, both, got = recent.Recent(2), threading.Barrier(2), []

    def make():
      both.wait(timeout=60)
      return object()

    threads = [threading.Thread(target=lambda: got.append(values.get("a", make))) for _ in range(2)]
    for thread in threads:
      thread.start()
    for thread in threads:
      thread.join()
    self.assertIs(got[0], got[1])
