from absl.testing import parameterized

from bamboo_jax.metrics import slot as slot_lib


class SlotTest(parameterized.TestCase):

  @parameterized.parameters((2.0, 1.0), (0.0, float("inf")), (float("nan"), 1.0))
  def test_impossible_times(self, start_ms, end_ms):
    with self.assertRaisesRegex(ValueError, "'2F0' of 'node 1'"):
      slot_lib.TrackSlot("node 1", "2F0", start_ms, end_ms)

  def test_tracks_sort_numbers_by_value(self):
    names = ("node 10", "node 2", "link 0", "node 2")
    slots = [slot_lib.TrackSlot(name, "", 0.0, 1.0) for name in names]
    self.assertEqual(slot_lib.tracks(slots), ("link 0", "node 2", "node 10"))
