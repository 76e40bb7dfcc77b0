import json
import pathlib
import tempfile

from absl.testing import parameterized

from bamboo_jax.metrics import chrome_trace
from bamboo_jax.metrics import slot as slot_lib

Slot = slot_lib.Slot


def _threads(trace):
  """Returns {(process, thread): [(name, category, start, length, step)]}."""
  names = {}
  threads = {}
  for event in trace["traceEvents"]:
    if event["name"] == "process_name":
      names[event["pid"]] = event["args"]["name"]
    elif event["name"] == "thread_name":
      names[event["pid"], event["tid"]] = event["args"]["name"]
    else:
      key = names[event["pid"]], names[event["pid"], event["tid"]]
      threads.setdefault(key, []).append(
          (
              event["name"],
              event["cat"],
              event["ts"],
              event["dur"],
              event["args"]["step"],
          )
      )
  return threads


class ChromeTraceTest(parameterized.TestCase):

  def test_planned_and_measured_are_processes_and_tracks_are_threads(self):
    steps = [
        chrome_trace.TracedStep(
            step=7,
            start_ms=100.0,
            planned=(
                Slot("node 0", "0F0", 0.0, 1.0, "forward"),
                Slot("node 1", "1F0", 1.0, 2.0, "forward"),
            ),
            measured=(Slot("node 0", "0F0", 0.25, 1.5, "forward"),),
        )
    ]
    self.assertEqual(
        _threads(json.loads(chrome_trace.render_trace(steps))),
        {
            ("planned", "node 0"): [("0F0", "forward", 100000.0, 1000.0, 7)],
            ("planned", "node 1"): [("1F0", "forward", 101000.0, 1000.0, 7)],
            ("measured", "node 0"): [("0F0", "forward", 100250.0, 1250.0, 7)],
        },
    )

  def test_slots_that_touch_share_a_thread_and_overlaps_do_not(self):
    measured = (
        Slot("node 0", "b", 0.3, 0.6),
        # 0.1 + 0.2 > 0.3 in floating point, but not in nanoseconds.
        Slot("node 0", "a", 0.1, 0.1 + 0.2),
        Slot("node 0", "c", 0.5, 0.7),
        Slot("node 0", "d", 0.6, 0.8),
    )
    step = chrome_trace.TracedStep(1, 0.0, (), measured)
    threads = _threads(json.loads(chrome_trace.render_trace([step])))
    self.assertEqual(
        {key: [s[0] for s in slots] for key, slots in threads.items()},
        {
            ("measured", "node 0"): ["a", "b", "d"],
            ("measured", "node 0 (2)"): ["c"],
        },
    )

  def test_writer_keeps_the_last_steps(self):
    path = (
        pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        / "trace.json"
    )
    writer = chrome_trace.TraceWriter(path, max_steps=2)
    for step in range(5):
      writer.add_step(
          step,
          start_ms=10.0 * step,
          planned=[],
          measured=[Slot("node 0", "0F0", 0.0, 1.0)],
      )
    writer.write()
    (slots,) = _threads(json.loads(path.read_text())).values()
    self.assertEqual([(s[2], s[4]) for s in slots], [(30000, 3), (40000, 4)])

  def test_writer_without_steps_writes_a_trace(self):
    path = (
        pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        / "trace.json"
    )
    chrome_trace.TraceWriter(path).write()
    self.assertEqual(_threads(json.loads(path.read_text())), {})

  def test_max_steps_is_checked(self):
    with self.assertRaisesRegex(ValueError, "max_steps .* got 0"):
      chrome_trace.TraceWriter("trace.json", max_steps=0)
