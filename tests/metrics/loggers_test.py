"""Loggers: none holds a step up, or ends a run; and what each writes."""

import importlib.util
import os
import struct
import subprocess
import sys
import threading
from unittest import mock

from absl.testing import absltest

from bamboo_jax.metrics import loggers
from tests import folders, late

event_pb2 = late.Library("tensorboardX.proto.event_pb2")


class FakeLogger:
  """Notes its calls; waits for `gate`, and raises at step `bad`."""

  def __init__(self, calls, step, gate, bad):
    self._calls, self._gate, self._bad = calls, gate, bad
    self._calls.append(("make", step))

  def log(self, step, metrics):
    self._gate.wait()
    if step == self._bad:
      raise OSError("No space left\non device")
    self._calls.append(("log", step))

  def event(self, name, step, values):
    self._calls.append((name, step))

  def close(self):
    self._calls.append(("close",))


class BackgroundTest(absltest.TestCase):

  def make(self, bad=None, step=0, **options):
    self.calls, self.gate = [], threading.Event()
    make = lambda step: FakeLogger(self.calls, step, self.gate, bad)
    return loggers.Background("fake", make, step=step, **options)

  def test_steps_do_not_wait_and_come_in_order(self):
    logger = self.make(step=4)
    logger.log(5, {})  # Returns though the logger is stuck.
    logger.event("eval", 5, {})
    logger.rewind(3)
    logger.log(4, {})
    self.gate.set()
    logger.close()
    self.assertEqual(
        self.calls,
        [("make", 4), ("log", 5), ("eval", 5), ("close",), ("make", 3), ("log", 4), ("close",)],
    )
    self.assertEqual(logger.take_error(), "")

  def test_one_that_hangs_is_named_at_the_end(self):
    logger = self.make(close_secs=0.01)
    self.addCleanup(self.gate.set)
    logger.log(1, {})
    logger.close()
    self.assertEqual(
        logger.take_error(), "No more lines for logger fake: it has not ended in 0.01 s"
    )

  def test_one_that_fails_is_dropped_with_one_line(self):
    logger = self.make(bad=2)
    self.gate.set()
    for step in (1, 2, 3):
      logger.log(step, {})
    logger.close()
    self.assertEqual(self.calls, [("make", 0), ("log", 1)])
    self.assertEqual(logger.take_error(), "No more lines for logger fake: No space left on device")
    self.assertEqual(logger.take_error(), "")
    logger.log(4, {})
    logger.close()


def _read_scalars(folder):
  """Returns [(step, name, value)] of the only event file, a TFRecord file."""
  (path,) = folder.glob("events.*")
  data = path.read_bytes()
  scalars = []
  while data:
    # A length and its checksum, the event, and its checksum.
    (length,) = struct.unpack("<Q", data[:8])
    event = event_pb2.Event.FromString(data[12 : 12 + length])
    scalars += [(event.step, v.tag, v.simple_value) for v in event.summary.value]
    data = data[16 + length :]
  return scalars


class FilesTest(folders.FolderCase):

  def test_a_resumed_run_replaces_later_rows(self):
    loggers.CsvFile(self.folder, 0)  # It died before its first step.
    first = loggers.CsvFile(self.folder, 0)
    first.log(1, {"top 1, 5": 2.0, "rung": "shadow", "ms": {"vote": 0.5}})
    first.log(2, {"top 1, 5": 1.5})
    first.event("eval", 2, {"top 1, 5": 9.0})
    first.close()
    again = loggers.CsvFile(self.folder, 1)
    again.log(2, {"top 1, 5": 1.25, "ms": {"vote": 1.0}, "new": 3.0})
    again.close()
    text = (self.folder / "metrics.csv").read_text()
    self.assertEqual(text, 'step,"top 1, 5",ms/vote\n1,2.0,0.5\n2,1.25,1.0\n')

  def test_a_logger_is_named_once(self):
    with self.assertRaisesRegex(ValueError, "logger must name 'csv' once, got 'csv, csv'"):
      loggers.parse_names("csv, csv")

  def test_numbers_become_scalars(self):
    writer = loggers.TensorBoard(self.folder, 0)
    writer.log(3, {"loss": 2.5, "tokens": 8, "rung": "shadow"})
    writer.event("eval", 3, {"loss": 2.75})
    writer.event("join", 3, {"secs": 2.75})
    writer.close()
    found = _read_scalars(self.folder / "events")
    wanted = [(3, "train/loss", 2.5), (3, "train/tokens", 8), (3, "eval/loss", 2.75)]
    self.assertEqual(found, wanted)

  def test_missing_extra_is_named(self):
    self.enterContext(mock.patch.dict(sys.modules, tensorboardX=None))  # Makes the import fail.
    with self.assertRaisesRegex(ValueError, r"bamboo_jax\[tensorboard\]"):
      loggers.TensorBoard(self.folder, 0)


# Nothing is sent. Processes of their own write the runs, as W&B reads its environment once; each
# takes seconds.
_WRITE = """
import pathlib, sys
from bamboo_jax.metrics import loggers

folder = pathlib.Path(sys.argv[1])
run = loggers.Background("wandb", lambda step: loggers.WandbRun(folder, {"seed": 1}), step=0)
for step in map(int, sys.argv[2:]):
  run.log(step, {"loss": 1.0, "phase_ms": {"vote": 0.5}})
run.event("eval", step, {"loss": 2.0})
run.event("recovery", step, {"names": ["n1"]})
run.close()
print(run.take_error())
"""


def _read_blocks(data):
  """Returns the records of a file of W&B: a log of LevelDB after 7 bytes."""
  records, part, at = [], b"", 7
  while at + 7 <= len(data):
    if 32768 - at % 32768 < 7:  # The rest of a block is empty.
      at += 32768 - at % 32768
      continue
    length, kind = struct.unpack("<HB", data[at + 4 : at + 7])
    part += data[at + 7 : at + 7 + length]
    at += 7 + length
    if kind in (1, 4):  # Whole, or the last part.
      records.append(part)
      part = b""
  return records


@absltest.skipUnless(importlib.util.find_spec("wandb"), "no W&B")
class WandbRunTest(folders.FolderCase):

  def write(self, *steps, **environ):
    """Returns the line about an error."""
    kept = {k: v for k, v in os.environ.items() if "WANDB" not in k}
    return subprocess.run(
        [sys.executable, "-c", _WRITE, self.folder, *map(str, steps)],
        env={**kept, "HOME": str(self.folder), **environ},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=120,
    ).stdout.strip()

  def read(self):
    """Returns id and steps in the files of all processes, in order."""
    from wandb.proto import wandb_internal_pb2

    found = []
    for path in sorted(self.folder.glob("wandb/offline-run-*/*.wandb")):
      steps, name = [], ""
      for data in _read_blocks(path.read_bytes()):
        record = wandb_internal_pb2.Record.FromString(data)
        if record.HasField("run"):
          name = record.run.run_id
        for item in record.history.item:
          if [item.key, *item.nested_key][-1] == "step":
            steps.append(int(item.value_json))
      found.append((name, steps))
    return found

  def test_restart_and_rollback_are_one_run(self):
    for steps in ((1, 2, 3), (2, 3, 4)):
      self.assertEqual(self.write(*steps, WANDB_MODE="offline"), "")
    found = self.read()
    self.assertLen({name for name, _ in found}, 1)
    self.assertEqual([steps for _, steps in found], [[1, 2, 3, 3, 3], [2, 3, 4, 4, 4]])

  def test_no_account_is_one_line(self):
    said = self.write(1, WANDB_BASE_URL="http://127.0.0.1:9")
    self.assertStartsWith(said, "No more lines for logger wandb: No API key")
    self.assertLen(said.splitlines(), 1)
