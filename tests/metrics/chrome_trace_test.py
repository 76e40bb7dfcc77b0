import json
import pathlib
import tempfile

from bamboo_jax.metrics import chrome_trace, rows
from tests import folders

TrackSlot = rows.TrackSlot


def _threads(steps):
  """Returns {(process, thread): [(name, category, start, length, step)]}."""
  names = {}
  threads = {}
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder, "trace.json")
    chrome_trace.write(path, steps)
    trace = json.loads(path.read_text())
  for event in trace["traceEvents"]:
    if event["name"] == "process_name":
      names[event["pid"]] = event["args"]["name"]
    elif event["name"] == "thread_name":
      names[event["pid"], event["tid"]] = event["args"]["name"]
    else:
      key = names[event["pid"]], names[event["pid"], event["tid"]]
      slot = tuple(event[name] for name in ("name", "cat", "ts", "dur"))
      threads.setdefault(key, []).append((*slot, event["args"]["step"]))
  return threads


class ChromeTraceTest(folders.FolderCase):

  def test_planned_and_measured_are_processes_and_tracks_are_threads(self):
    planned = (
        TrackSlot("node 0", "0F0", "forward", 0.0, 1.0),
        TrackSlot("node 1", "1F0", "forward", 1.0, 2.0),
    )
    measured = (TrackSlot("node 0", "0F0", "forward", 0.25, 1.5),)
    steps = [rows.Step(6, 50.0, ()), rows.Step(7, 50.1, planned, measured)]
    self.assertEqual(
        _threads(steps),
        {
            ("planned", "node 0"): [("0F0", "forward", 100000.0, 1000.0, 7)],
            ("planned", "node 1"): [("1F0", "forward", 101000.0, 1000.0, 7)],
            ("measured", "node 0"): [("0F0", "forward", 100250.0, 1250.0, 7)],
        },
    )

  def test_slots_that_touch_share_a_thread_and_overlaps_do_not(self):
    measured = (
        TrackSlot("node 0", "b", "forward", 0.3, 0.6),
        # 0.1 + 0.2 > 0.3 in floating point, but not in nanoseconds.
        TrackSlot("node 0", "a", "forward", 0.1, 0.1 + 0.2),
        TrackSlot("node 0", "c", "forward", 0.5, 0.7),
        TrackSlot("node 0", "d", "forward", 0.6, 0.8),
    )
    step = rows.Step(1, 0.0, (), measured)
    threads = _threads([step])
    self.assertEqual(
        {key: [s[0] for s in slots] for key, slots in threads.items()},
        {("measured", "node 0"): ["a", "b", "d"], ("measured", "node 0 (2)"): ["c"]},
    )

  def test_a_death_is_an_instant(self):
    path = self.folder / "trace.json"
    chrome_trace.write(path, [rows.Step(1, 0.0, (), (), [("n3", 2.0)])])
    *_, event = json.loads(path.read_text())["traceEvents"]
    self.assertEqual((event["ph"], event["name"], event["ts"]), ("i", "n3 dies", 2000.0))
