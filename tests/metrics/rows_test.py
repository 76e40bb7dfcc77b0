"""The steps of all members, joined from their files; as a trace for Perfetto."""

import json

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


def _threads(path, steps):
  """Returns {(process, thread): [(name, category, start, length, step)]}."""
  names, threads = {}, {}
  rows_lib.write_trace(path, steps)
  for event in json.loads(path.read_text())["traceEvents"]:
    if event["name"] == "process_name":
      names[event["pid"]] = event["args"]["name"]
    elif event["name"] == "thread_name":
      names[event["pid"], event["tid"]] = event["args"]["name"]
    else:
      key = names[event["pid"]], names[event["pid"], event["tid"]]
      slot = tuple(event.get(name) for name in ("name", "cat", "ts", "dur"))
      threads.setdefault(key, []).append((*slot, event["args"]["step"]))
  return threads


class TraceTest(folders.FolderCase):

  def test_planned_and_measured_are_processes_and_tracks_are_threads(self):
    planned = (
        rows_lib.TrackSlot("node 0", "0F0", "forward", 0.0, 1.0),
        rows_lib.TrackSlot("node 1", "1F0", "forward", 1.0, 2.0),
    )
    measured = (rows_lib.TrackSlot("node 0", "0F0", "forward", 0.25, 1.5),)
    dead = [("node 1", 2.0)]  # An instant.
    steps = [rows_lib.Step(6, 50.0, ()), rows_lib.Step(7, 50.1, planned, measured, dead)]
    self.assertEqual(
        _threads(self.folder / "trace.json", steps),
        {
            ("planned", "node 0"): [("0F0", "forward", 100000.0, 1000.0, 7)],
            ("planned", "node 1"): [("1F0", "forward", 101000.0, 1000.0, 7)],
            ("measured", "node 0"): [("0F0", "forward", 100250.0, 1250.0, 7)],
            ("measured", "node 1"): [("node 1 dies", "death", 102000.0, None, 7)],
        },
    )

  def test_slots_that_touch_share_a_thread_and_overlaps_do_not(self):
    measured = (
        rows_lib.TrackSlot("node 0", "b", "forward", 0.3, 0.6),
        # 0.1 + 0.2 > 0.3 in floating point, but not in nanoseconds.
        rows_lib.TrackSlot("node 0", "a", "forward", 0.1, 0.1 + 0.2),
        rows_lib.TrackSlot("node 0", "c", "forward", 0.5, 0.7),
        rows_lib.TrackSlot("node 0", "d", "forward", 0.6, 0.8),
    )
    step = rows_lib.Step(1, 0.0, (), measured)
    threads = _threads(self.folder / "trace.json", [step])
    self.assertEqual(
        {key: [s[0] for s in slots] for key, slots in threads.items()},
        {("measured", "node 0"): ["a", "b", "d"], ("measured", "node 0 (2)"): ["c"]},
    )
