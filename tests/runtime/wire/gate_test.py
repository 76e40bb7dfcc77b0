"""What has begun is counted, and nothing begins behind a closed gate."""

from absl.testing import absltest

from bamboo_jax.runtime.wire import gate as gate_lib


class GateTest(absltest.TestCase):

  def test_closed_gate_counts_what_follows_only(self):
    gate = gate_lib.Gate()
    gate.begin("a@0,1")
    begun = gate.close(4)
    self.assertEqual((begun.since, begun.channels), ((0, 0), ("a@0,1",)))
    with self.assertRaises(gate_lib.StoppedError):
      gate.begin("b@0,1")
    with self.assertRaises(gate_lib.StoppedError):
      gate.check()
    gate.follow("c@0,1")
    self.assertEqual(gate.close(4).channels, ("a@0,1", "c@0,1"))

  def test_level(self):
    gate = gate_lib.Gate()
    gate.begin("a@0,1")
    gate.level(4, 7)
    begun = gate.close(5)
    self.assertEqual((begun.since, begun.channels), ((4, 7), ()))

  def test_an_older_view_does_not_open_it(self):
    gate = gate_lib.Gate()
    gate.close(4)
    gate.close(5)
    gate.open(4)
    with self.assertRaises(gate_lib.StoppedError):
      gate.check()
    gate.open(5)
    gate.check()


if __name__ == "__main__":
  absltest.main()
