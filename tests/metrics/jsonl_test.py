import contextlib
import json

from absl.testing import parameterized
import numpy as np

from bamboo_jax.metrics import jsonl
from tests import folders, limits, tables

# Step numbers with the letters of events, as they are written, and what is kept. If a step is
# there twice, two members have told it.
_FOLDED = """
1 2 3
  1 2 3
1 2 3 rollback1 2 3
  1 rollback1 2 3
1 2 rollback0 1 2 rollback1 2 3
  rollback0 1 rollback1 2 3
1 2 recovery2 join3 eval2 rollback1 2
  1 recovery2 join3 rollback1 2
1 2 slow2 rollback1 2
  1 slow2 rollback1 2
1 2 recovery2 join3 eval2 slow2 start1 2
  1 start1 2
start0 1 2 3 start2 3 rollback0 1
  start0 start2 rollback0 1
1 2 2 3
  1 2 3
1 2 rollback1 2 2
  1 rollback1 2
"""


class JsonlTest(folders.FolderCase):

  def setUp(self):
    super().setUp()
    self.path = self.folder / "metrics.jsonl"

  def writing(self, **options):
    return contextlib.closing(jsonl.MetricsWriter(self.path, **options))

  def test_lines(self):
    with self.writing() as writer:
      writer.write_step(1, {"loss": 2.5, "tokens_per_sec": 100})
      writer.write_step(1, {"event": "eval"})
      # Nothing waits in a buffer until the file is closed.
      self.assertEqual(
          self.path.read_text(),
          '{"step": 1, "loss": 2.5, "tokens_per_sec": 100, "life": 1, "member": ""}\n'
          '{"step": 1, "event": "eval", "life": 1, "member": ""}\n',
      )

  def test_lines_are_read_as_they_come(self):
    reader = jsonl.MetricsReader(self.path)
    self.assertEqual(reader.read(), ())  # There is no file yet.
    with self.writing() as writer:
      self.assertEqual(reader.read(), ())
      writer.write_step(1, {})
      writer.write_step(2, {})
      self.assertEqual(reader.read(), ({"step": 1}, {"step": 2}))
      with self.path.open("ab") as file:
        file.write(b'{"step": 3}\n{"st')
      self.assertEqual(reader.read(), ({"step": 3},))
      with self.path.open("ab") as file:
        file.write(b'ep": 4}\n')
      self.assertEqual(reader.read(), ({"step": 4},))
      self.assertEqual(reader.read(), ())

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
    with self.writing() as writer:
      writer.write_step(1, {"value": value})
    line = json.loads(self.path.read_text(), parse_constant=self.fail)
    self.assertEqual((line["step"], line["value"]), (1, want))

  @parameterized.parameters(*tables.read(_FOLDED))
  def test_fold(self, written, kept):
    number = lambda word: int(word.lstrip("abcdefghijklmnopqrstuvwxyz"))
    lines = []
    for i, word in enumerate(written.split()):
      event = word.rstrip("0123456789")
      lines.append({"step": number(word), "at": i} | ({"event": event} if event else {}))
    found = jsonl.fold(lines)
    self.assertEqual(" ".join(f"{l.get('event', '')}{l['step']}" for l in found), kept)
    self.assertSequenceEqual([l["at"] for l in found], sorted(l["at"] for l in found))

  @parameterized.parameters("{", '{"st', '{"step": 5, "loss": 1.0')
  def test_line_that_a_crash_cut_off(self, torn):
    with self.writing() as writer:
      for step in (1, 2, 3, 4):
        writer.write_step(step, {"loss": 4.0 - step / 2})
        if step % 2 == 0:
          writer.write_step(step, {"event": "eval", "loss": 5.0 - step})
    whole = self.path.read_text()
    self.path.write_text(whole + torn)
    self.assertLen(jsonl.read_lines(self.path), 6)
    with self.writing() as writer:
      writer.write_step(5, {"loss": 2.0})
    with self.assertLogs(level="WARNING") as logs:
      lines = jsonl.read_lines(self.path)
    self.assertEqual(lines[6:], ({"step": 5, "loss": 2.0},))
    self.assertEqual(jsonl.column(lines, "loss", event="eval"), ((2, 4), (3.0, 1.0)))
    self.assertStartsWith(self.path.read_text(), whole)
    self.assertLen(logs.output, 1)
    self.assertIn(f"Line 7 of {self.path} was cut off", logs.output[0])

  @parameterized.parameters("{}", "[1]", "3", "not json", '{"step": "1"}')
  def test_damaged_line(self, line):
    self.path.write_text('{"step": 1}\n' + line + '\n{"step": 2}\n')
    with self.assertRaisesRegex(ValueError, "Line 2 of .*metrics.jsonl"):
      jsonl.read_lines(self.path)

  @parameterized.parameters(
      (0, "File too large.*metrics.jsonl"), (5, "only 5 of 37 bytes.*metrics.jsonl")
  )
  def test_line_that_does_not_fit_waits_for_room(self, room_bytes, message):
    with self.writing() as writer:
      writer.write_step(1, {})
      with limits.file_size(self.path.stat().st_size + room_bytes):
        with self.assertRaisesRegex(OSError, message):
          writer.write_step(2, {})
        self.assertEqual(jsonl.read_lines(self.path), ({"step": 1},))
      writer.write_step(3, {})
    self.assertEqual(jsonl.read_lines(self.path), ({"step": 1}, {"step": 2}, {"step": 3}))

  def test_another_writes_behind_a_line_that_was_cut_off(self):
    with self.writing(member="n0") as first, self.writing(member="n1") as second:
      first.write_step(1, {})
      with limits.file_size(self.path.stat().st_size + 45):
        for step in (2, 3):  # A part of the first fits.
          with contextlib.suppress(OSError):
            first.write_step(step, {"a": {"step": 0}})
      second.write_step(3, {"a": 2})
      self.assertEqual([l["step"] for l in jsonl.read_lines(self.path)], [1, 3])
      first.write_step(4, {})
    found = [(line["step"], line.get("a")) for line in jsonl.read_lines(self.path)]
    self.assertEqual(found, [(1, None), (2, {"step": 0}), (3, {"step": 0}), (4, None)])

  def test_two_lives_write_at_once(self):
    with self.writing(life=1) as old, self.writing(life=2) as new:
      reader = jsonl.MetricsReader(self.path)
      for step in (1, 2, 3):
        old.write_step(step, {"loss": 1.0})
      new.write_step(1, {"event": "start"})
      for step in (2, 3):
        new.write_step(step, {"loss": 2.0})
        old.write_step(step + 2, {"loss": 1.0})  # It does not know that it is over.
      new.write_step(4, {"loss": 2.0})
      live = reader.read()
    lines = jsonl.read_lines(self.path)
    self.assertEqual(jsonl.column(lines, "loss"), ((1, 2, 3, 4), (1.0, 2.0, 2.0, 2.0)))
    self.assertEqual(jsonl.fold(live), lines)
    self.assertEqual(reader.life, 2)
