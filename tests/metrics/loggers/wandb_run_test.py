"""Runs of W&B that are kept on this machine: nothing is sent.

Skipped without the extra `wandb`. Processes of their own write them, as W&B
reads its environment once; each takes seconds.
"""

import importlib.util
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

from absl.testing import absltest

_WRITE = """
import pathlib, sys
from bamboo_jax.metrics.loggers import background, wandb_run

folder = pathlib.Path(sys.argv[1])
run = background.Background(
    "wandb", lambda step: wandb_run.WandbRun(folder, {"seed": 1}), step=0
)
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
class WandbRunTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

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


if __name__ == "__main__":
  absltest.main()
