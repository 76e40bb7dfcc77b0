import contextlib
import json

from absl.testing import parameterized
import numpy as np

from bamboo_jax.metrics import jsonl
from tests import folders, limits


class JsonlTest(folders.FolderCase):

  def setUp(self):
    super().setUp()
    self.path = self.folder / "metrics.jsonl"

  def _write_run(self):
    with contextlib.closing(jsonl.MetricsWriter(self.path)) as writer:
      for step in (1, 2, 3, 4):
        writer.write_step(step, {"loss": 4.0 - step / 2})
        if step % 2 == 0:
          writer.write_event("eval", step=step, values={"loss": 5.0 - step})

  def test_lines(self):
    with contextlib.closing(jsonl.MetricsWriter(self.path)) as writer:
      writer.write_step(1, {"loss": 2.5, "tokens_per_sec": 100})
      writer.write_event("eval", step=1)
      # Nothing waits in a buffer until the file is closed.
      self.assertEqual(
          self.path.read_text(),
          '{"step": 1, "loss": 2.5, "tokens_per_sec": 100}\n' '{"step": 1, "event": "eval"}\n',
      )

  def test_lines_are_read_as_they_come(self):
    with contextlib.closing(jsonl.MetricsWriter(self.path)) as writer:
      reader = self.enterContext(contextlib.closing(jsonl.MetricsReader(self.path)))
      self.assertEqual(reader.read(), (True, ()))
      writer.write_step(1, {})
      writer.write_step(2, {})
      self.assertEqual(reader.read(), (False, ({"step": 1}, {"step": 2})))
      with self.path.open("ab") as file:
        file.write(b'{"step": 3}\n{"st')
      self.assertEqual(reader.read(), (False, ({"step": 3},)))
      with self.path.open("ab") as file:
        file.write(b'ep": 4}\n')
      self.assertEqual(reader.read(), (False, ({"step": 4},)))
      self.assertEqual(reader.read(), (False, ()))
      writer.forget_after(1)  # Another file.
      writer.write_step(2, {"loss": 1})
      lines = ({"step": 1}, {"step": 2, "loss": 1})
      self.assertEqual(reader.read(), (True, lines))

  @parameterized.parameters(
      (float("nan"), None),
      (float("-inf"), None),
      (np.float32(0.5), 0.5),
      (np.int64(3), 3),
      (np.array([1.0, np.nan]), [1.0, None]),
      ({"a": (np.float64(1.5), float("inf"))}, {"a": [1.5, None]}),
      (True, True),
      ("text", "text"),
  )
  def test_values_are_strict_json(self, value, want):
    with contextlib.closing(jsonl.MetricsWriter(self.path)) as writer:
      writer.write_step(1, {"value": value})
    text = self.path.read_text()
    self.assertEqual(json.loads(text, parse_constant=self.fail), {"step": 1, "value": want})

  @parameterized.parameters(0, 1, 2, 3, 4, 9)
  def test_resumed_run_has_each_step_once(self, resumed_from_step):
    self._write_run()
    with contextlib.closing(
        jsonl.MetricsWriter(self.path, resumed_from_step=resumed_from_step)
    ) as writer:
      for step in range(resumed_from_step + 1, 6):
        writer.write_step(step, {"loss": 0.0})
    steps, losses = jsonl.column(jsonl.read_lines(self.path), "loss")
    kept = min(resumed_from_step, 4)
    self.assertEqual(steps, (*range(1, kept + 1), *range(resumed_from_step + 1, 6)))
    self.assertEqual(losses[:kept], (3.5, 3.0, 2.5, 2.0)[:kept])

  @parameterized.parameters('{"st', '{"step": 5, "loss": 1.0}')
  def test_torn_last_line(self, torn):
    self._write_run()
    whole = self.path.read_text()
    self.path.write_text(whole + torn)
    self.assertLen(jsonl.read_lines(self.path), 6)
    jsonl.MetricsWriter(self.path, resumed_from_step=4).close()
    self.assertEqual(self.path.read_text(), whole)

  @parameterized.parameters("{}", "[1]", "3", "not json", '{"step": "1"}', "")
  def test_damaged_line(self, line):
    self.path.write_text('{"step": 1}\n' + line + '\n{"step": 2}\n')
    for read in (jsonl.read_lines, jsonl.MetricsWriter):
      with self.assertRaisesRegex(ValueError, "Line 2 of .*metrics.jsonl"):
        read(self.path)

  @parameterized.parameters(
      (0, "File too large.*metrics.jsonl"), (5, "only 5 of 12 bytes.*metrics.jsonl")
  )
  def test_line_that_does_not_fit_waits_for_room(self, room_bytes, message):
    with contextlib.closing(jsonl.MetricsWriter(self.path)) as writer:
      writer.write_step(1, {})
      with limits.file_size(self.path.stat().st_size + room_bytes):
        with self.assertRaisesRegex(OSError, message):
          writer.write_step(2, {})
        self.assertEqual(jsonl.read_lines(self.path), ({"step": 1},))
      writer.write_step(3, {})
    self.assertEqual(jsonl.read_lines(self.path), ({"step": 1}, {"step": 2}, {"step": 3}))

  def test_error_that_is_handled_is_not_raised(self):
    errors = []
    with contextlib.closing(jsonl.MetricsWriter(self.path, on_error=errors.append)) as writer:
      with limits.file_size(0):
        writer.write_step(1, {})
        writer.write_event("eval", step=1)
    self.assertLen(errors, 2)
    self.assertEqual(jsonl.read_lines(self.path), ({"step": 1}, {"step": 1, "event": "eval"}))

  def test_column(self):
    self._write_run()
    lines = jsonl.read_lines(self.path)
    self.assertEqual(jsonl.column(lines, "loss", event="eval"), ((2, 4), (3.0, 1.0)))
    self.assertEqual(jsonl.column(lines, "loss")[0], (1, 2, 3, 4))
    self.assertEqual(jsonl.column(lines, "bubble_pct"), ((), ()))
