"""The steps of all members, joined from their files."""

from bamboo_jax.metrics import rows as rows_lib
from tests import folders

_DEATH = {"step": 3, "names": ["n2"], "view_at_secs": 10.125}


def _make(step, at_secs, track):
  slots = [rows_lib.TrackSlot(track, "0F0", "forward", 1.0, 2.0)]
  return rows_lib.StepRows(step, at_secs, at_secs - 90.0, slots)


class RowsTest(folders.FolderCase):

  def test_members_are_on_one_clock(self):
    for name, rows in (
        ("n0", [_make(2, 99.5, "n0"), _make(3, 100.0, "n0")]),
        ("n1", [_make(3, 100.25, "n1")]),
        ("n2", [_make(1, 99.0, "n2"), _make(2, 99.5, "n2")]),  # It is dead.
        ("planned", [_make(1, 99.0, "n0"), _make(3, 99.0, "n1")]),
    ):
      rows_lib.write(self.folder / f"{name}.json", rows)
    before, last = rows_lib.read_steps(self.folder, [_DEATH])
    self.assertEqual([slot.track for slot in before.measured], ["n0", "n2"])
    self.assertEqual((before.step, before.deaths), (2, []))
    self.assertEqual([slot[3:] for slot in last.measured], [(1.0, 2.0), (251.0, 252.0)])
    self.assertEqual(last.deaths, [("n2", 125.0)])
    # Each has the plan of its step.
    tracks = [slot.track for step in (before, last) for slot in step.planned]
    self.assertEqual(tracks, ["n0", "n1"])

  def test_a_plan_alone_and_damaged_files(self):
    self.assertEmpty(rows_lib.read_steps(self.folder / "absent", []))
    rows_lib.write(self.folder / rows_lib.PLANNED, [_make(1, 99.0, "n0")])
    (self.folder / "n1.json").write_text("[{")
    (step,) = rows_lib.read_steps(self.folder, [])
    self.assertEqual((step.step, len(step.planned), step.measured), (0, 1, ()))
    with self.assertRaisesRegex(ValueError, "JSON compliant"):
      rows_lib.write(self.folder / "n1.json", [_make(1, float("nan"), "n0")])

  def test_tracks_sort_numbers_by_value(self):
    names = ("node 10", "node 2", "link 0", "node 2")
    slots = [rows_lib.TrackSlot(name, "", "forward", 0.0, 1.0) for name in names]
    self.assertEqual(rows_lib.tracks(slots), ("link 0", "node 2", "node 10"))
