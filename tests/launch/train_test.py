"""The command that trains: how it ends, and what is there afterwards."""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading

from absl.testing import absltest

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_DEADLINE_SECS = 240


class TrainTest(absltest.TestCase):

  # Compiles in a process of its own: 8 s.
  def test_interrupt_keeps_the_last_checkpoint(self):
    root = self.enterContext(tempfile.TemporaryDirectory())
    process = subprocess.Popen(
        [
            *[sys.executable, "-m", "launch.train", "--config=tests/tiny.py"],
            *[f"--workdir={root}", "--config.num_steps=1000000"],
        ],
        cwd=_ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    stderr = []
    reader = threading.Thread(
        target=lambda: stderr.append(process.stderr.read())
    )
    reader.start()
    watchdog = threading.Timer(_DEADLINE_SECS, process.kill)
    watchdog.start()
    with process:
      try:
        for line in process.stdout:
          if line.startswith("step=7 "):  # Step 4 was saved before 6 was.
            process.send_signal(signal.SIGINT)
        code = process.wait()
      finally:
        watchdog.cancel()
        process.kill()
    reader.join(_DEADLINE_SECS)
    self.assertEqual(code, 130)
    self.assertEqual(
        stderr,
        [
            "error: interrupted; the same command goes on from the last "
            "checkpoint\n"
        ],
    )
    saved = [n for n in os.listdir(f"{root}/checkpoints") if n.isdigit()]
    self.assertNotEmpty(saved)
    with self.assertRaises(ProcessLookupError):  # Its whole session is gone.
      os.killpg(process.pid, 0)
