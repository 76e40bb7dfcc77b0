"""The first reason ends an agent, and some begin anew."""

import asyncio

from absl.testing import absltest

from bamboo_jax.cluster import detection
from bamboo_jax.cluster import views
from bamboo_jax.cluster.agent import ending as ending_lib
from bamboo_jax.cluster.agent import options

_OPTIONS = options.Options(
    run="run",
    name="n0",
    zone="a",
    host="127.0.0.1",
    num_nodes=8,
    max_nodes=None,
    place=lambda zones: {},
    facts={},
    command=(),
    log="",
    limits=detection.Limits(),
)


class EndingTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.ending = ending_lib.Ending()

  def successor(self):
    return self.ending.successor(_OPTIONS, views.View(7, (), "test"))

  def test_the_first_reason_counts(self):
    self.assertFalse(self.ending.is_near)
    self.ending.finish("one")
    self.ending.finish("two")
    self.ending.fail(OSError())
    self.ending.end_run("me", "three")
    self.assertTrue(self.ending.is_near)
    self.assertEqual(asyncio.run(self.ending.wait()), "one")
    self.assertIsNone(self.successor())

  def test_an_exception(self):
    self.ending.fail(OSError("store"))
    self.ending.finish("one")
    with self.assertRaisesRegex(OSError, "store"):
      asyncio.run(self.ending.wait())

  def test_all_agents_without_a_worker_begin_anew(self):
    for name in ("a", "b", "a"):
      self.ending.note_bereft(name)
    self.ending.end_run("me", "nobody is left")
    successor = self.successor()
    self.assertEqual((successor.num_nodes, successor.after_view), (3, 7))


if __name__ == "__main__":
  absltest.main()
