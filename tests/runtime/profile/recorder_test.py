"""Errors of instructions come once, and none that a death explains."""

from absl.testing import absltest
import jax
import jax.numpy as jnp
import numpy as np

from bamboo_jax.runtime.profile import recorder as recorder_lib
from bamboo_jax.schedule import instruction as instruction_lib

_FORWARD = instruction_lib.Instruction(0, instruction_lib.Op.FORWARD, 0)


def make_poisoned():
  """Returns an array that `jax.block_until_ready` refuses."""
  array = jnp.ones(3)
  array.delete()
  return array


class RecorderTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.recorder = recorder_lib.Recorder()
    self.addCleanup(self.recorder.close)

  def drain(self, node):
    """Waits until the thread of a node has seen all."""
    self.recorder._watches[node]._entries.join()

  def test_measures_in_row_order(self):
    for node in (1, 0, 1):
      self.recorder.add(node, _FORWARD, jnp.ones(3))
    measured = self.recorder.finish()
    self.assertEqual([m.node for m in measured], [0, 1, 1])
    self.assertTrue(all(m.start_secs <= m.end_secs for m in measured))
    self.assertLessEqual(measured[1].end_secs, measured[2].start_secs)
    self.assertEmpty(self.recorder.finish())

  def test_an_error_is_raised_once(self):
    self.recorder.add(0, _FORWARD, make_poisoned())
    with self.assertRaisesRegex(RuntimeError, "deleted"):
      self.recorder.wait()
    self.recorder.wait()

  def test_an_error_from_before_a_death_is_not_raised_after_it(self):
    self.recorder.add(0, _FORWARD, make_poisoned())
    self.drain(0)  # It is known, but nobody has asked.
    self.recorder.forgive()
    self.recorder.add(0, _FORWARD, jnp.ones(3))
    self.assertLen(self.recorder.finish(), 1)

  def test_an_error_that_comes_late_is_not_raised_either(self):
    for node in (0, 1):
      self.recorder.add(node, _FORWARD, make_poisoned())
    self.recorder.forgive()  # Whether the threads have seen it or not.
    self.recorder.wait()

  def test_another_error_after_it_is_raised(self):
    self.recorder.add(0, _FORWARD, make_poisoned())
    self.drain(0)
    self.recorder.forgive()
    self.recorder.add(0, _FORWARD, make_poisoned())
    with self.assertRaisesRegex(RuntimeError, "deleted"):
      self.recorder.wait()

  def test_the_dead_raise_nothing(self):
    self.recorder.add(0, _FORWARD, jnp.ones(3))
    self.recorder.add(0, _FORWARD, make_poisoned())
    self.drain(0)
    self.recorder.forget(0)
    self.recorder.forget(7)  # It has run nothing.
    self.recorder.add(1, _FORWARD, jax.device_put(np.ones(3)))
    self.assertLen(self.recorder.finish(), 2)
