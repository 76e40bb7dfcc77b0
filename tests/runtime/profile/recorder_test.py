"""Errors of instructions come once, and none that a death explains."""

from absl.testing import parameterized
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


class RecorderTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.recorder = recorder_lib.Recorder()
    self.addCleanup(self.recorder.close)

  def drain(self, node):
    """Waits until the thread of a node has seen all."""
    self.recorder._threads[node].submit(int).result()

  def test_measures_in_row_order(self):
    for node in (1, 0, 1):
      self.recorder.add(node, _FORWARD, jnp.ones(3))
    measured = self.recorder.finish()
    self.assertEqual([m.node for m in measured], [0, 1, 1])
    self.assertTrue(all(m.start_secs <= m.end_secs for m in measured))
    self.assertLessEqual(measured[1].end_secs, measured[2].start_secs)
    self.assertEmpty(self.recorder.finish())

  # Errors of nodes 0 and 1 are (a)dded, one is (d)rained, so that it is known
  # before anybody asks, and those so far are (f)orgiven.
  @parameterized.parameters(("a", True), ("adf", False), ("abf", False), ("adfa", True))
  def test_an_error_is_raised_once_unless_forgiven(self, script, is_raised):
    steps = {
        "a": lambda: self.recorder.add(0, _FORWARD, make_poisoned()),
        "b": lambda: self.recorder.add(1, _FORWARD, make_poisoned()),
        "d": lambda: self.drain(0),
        "f": lambda: self.recorder.bury(()),
    }
    for step in script:
      steps[step]()
    self.recorder.add(0, _FORWARD, jnp.ones(3))
    if is_raised:
      with self.assertRaisesRegex(RuntimeError, "deleted"):
        self.recorder.finish()
    self.assertLen(self.recorder.finish(), 1)

  def test_the_dead_raise_nothing_and_what_they_measured_counts(self):
    self.recorder.add(0, _FORWARD, jnp.ones(3))
    self.recorder.add(0, _FORWARD, make_poisoned())
    self.drain(0)
    (thread,) = self.recorder._threads[0]._threads
    self.recorder.bury({0, 7})  # The latter has run nothing.
    self.recorder.add(1, _FORWARD, jax.device_put(np.ones(3)))
    self.assertEqual([m.node for m in self.recorder.finish()], [0, 1])
    thread.join()
