import json
import pathlib
import tempfile

from absl.testing import parameterized

from bamboo_jax.metrics import chrome_trace, slot as slot_lib
from tests import folders

TrackSlot = slot_lib.TrackSlot


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
        TrackSlot("node 0", "0F0", 0.0, 1.0, "forward"),
        TrackSlot("node 1", "1F0", 1.0, 2.0, "forward"),
    )
    measured = (TrackSlot("node 0", "0F0", 0.25, 1.5, "forward"),)
    steps = [chrome_trace.TracedStep(7, 100.0, planned, measured)]
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
        TrackSlot("node 0", "b", 0.3, 0.6),
        # 0.1 + 0.2 > 0.3 in floating point, but not in nanoseconds.
        TrackSlot("node 0", "a", 0.1, 0.1 + 0.2),
        TrackSlot("node 0", "c", 0.5, 0.7),
        TrackSlot("node 0", "d", 0.6, 0.8),
    )
    step = chrome_trace.TracedStep(1, 0.0, (), measured)
    threads = _threads([step])
    self.assertEqual(
        {key: [s[0] for s in slots] for key, slots in threads.items()},
        {("measured", "node 0"): ["a", "b", "d"], ("measured", "node 0 (2)"): ["c"]},
    )

  def test_planned_slots_of_the_last_step_are_read_back(self):
    planned = (
        TrackSlot("node 0", "0F0", 0.0, 1.0, "forward"),
        TrackSlot("node 0", "0RF0", 0.5, 2.0, "redundant"),  # In "node 0 (2)".
        TrackSlot("node 1", "1F0", 1.0, 2.0, "forward"),
    )
    steps = [
        chrome_trace.TracedStep(7, 100.0, planned[:1], planned),
        chrome_trace.TracedStep(8, 200.0, planned, planned[:1]),
    ]
    path = self.folder / "trace.json"
    chrome_trace.write(path, steps)
    self.assertCountEqual(chrome_trace.read_last(path).planned, planned)
    chrome_trace.write(path, [])
    self.assertEqual(chrome_trace.read_last(path).step, 0)

  @parameterized.parameters("", "[]", "{}", '{"traceEvents": [{"ph": "X"}]}')
  def test_another_file_is_no_trace(self, text):
    path = self.folder / "trace.json"
    path.write_text(text)
    with self.assertRaisesRegex(ValueError, "is not the trace of a run"):
      chrome_trace.read_last(path)
