"""Programs over processes: where they can run, and how they are ended."""

from unittest import mock

from absl.testing import absltest
import jax

from bamboo_jax.base import threads
from bamboo_jax.runtime.spmd.processes import collectives as collectives_lib, coordination
from bamboo_jax.schedule import channel as channel_lib


def make():
  return collectives_lib.ProcessCollectives(1, None, is_lost=lambda node: False)


class CollectivesTest(absltest.TestCase):

  def test_accelerators_are_rejected(self):
    for module, name, value in (
        (threads, "call_beside", None),
        (coordination, "connect", None),
        (jax, "default_backend", "gpu"),
    ):
      self.enterContext(mock.patch.object(module, name, return_value=value))
    with self.assertRaisesRegex(ValueError, "'gpu': set executor='rows'"):
      make().start("127.0.0.1")

  def test_segments_that_others_have_begun_are_answered(self):
    made, answered = make(), []
    made.attach(answered.append)
    ring = channel_lib.Channel("ring", (0, 1), (1,))
    theirs = channel_lib.Begun((1, 0), (ring,))
    made.settle({0: theirs, 1: made.begun()}, view=2)
    self.assertEqual(answered, [ring])
    made.settled(1, 8)  # Later than node 0: its segment has ended.
    made.settle({0: theirs, 1: made.begun()}, view=2)
    self.assertEqual(answered, [ring])
