"""Loggers in threads: none holds a step up, or ends a run."""

import threading

from absl.testing import absltest

from bamboo_jax.metrics.loggers import background


class FakeLogger:
  """Notes its calls; waits for `gate`, and raises at step `bad`."""

  def __init__(self, calls, step, gate, bad):
    self._calls, self._gate, self._bad = calls, gate, bad
    self._calls.append(("make", step))

  def log(self, step, metrics):
    self._gate.wait()
    if step == self._bad:
      raise OSError("No space left\non device")
    self._calls.append(("log", step))

  def event(self, name, step, values):
    self._calls.append((name, step))

  def close(self):
    self._calls.append(("close",))


class BackgroundTest(absltest.TestCase):

  def make(self, bad=None, step=0, **options):
    self.calls, self.gate = [], threading.Event()
    make = lambda step: FakeLogger(self.calls, step, self.gate, bad)
    return background.Background("fake", make, step=step, **options)

  def test_steps_do_not_wait_and_come_in_order(self):
    logger = self.make(step=4)
    logger.log(5, {})  # Returns though the logger is stuck.
    logger.event("eval", 5, {})
    logger.rewind(3)
    logger.log(4, {})
    self.gate.set()
    logger.close()
    self.assertEqual(
        self.calls,
        [
            *(("make", 4), ("log", 5), ("eval", 5), ("close",)),
            *(("make", 3), ("log", 4), ("close",)),
        ],
    )
    self.assertEqual(logger.take_error(), "")

  def test_one_that_hangs_is_named_at_the_end(self):
    logger = self.make(close_secs=0.01)
    self.addCleanup(self.gate.set)
    logger.log(1, {})
    logger.close()
    self.assertEqual(
        logger.take_error(), "No more lines for logger fake: it has not ended in 0.01 s"
    )

  def test_one_that_fails_is_dropped_with_one_line(self):
    logger = self.make(bad=2)
    self.gate.set()
    for step in (1, 2, 3):
      logger.log(step, {})
    logger.close()
    self.assertEqual(self.calls, [("make", 0), ("log", 1)])
    self.assertEqual(logger.take_error(), "No more lines for logger fake: No space left on device")
    self.assertEqual(logger.take_error(), "")
    logger.log(4, {})
    logger.close()


if __name__ == "__main__":
  absltest.main()
