"""The command that trains: how it ends, and what is there afterwards."""

import os
import signal
import subprocess
import sys
import threading

from tests.launch import commands

_DEADLINE_SECS = 240


class TrainTest(commands.CommandCase):

  # Compiles in a process of its own: 8 s.
  def test_interrupt_keeps_the_last_checkpoint(self):
    command = [sys.executable, "-m", "launch.train", "--config=tests/tiny.py"]
    options = [f"--workdir={self.folder}", "--config.num_steps=1000000"]
    with open(self.folder / "stderr", "w") as stderr:
      process = subprocess.Popen(
          [*command, *options],
          cwd=commands.ROOT,
          stdout=subprocess.PIPE,
          stderr=stderr,
          text=True,
          start_new_session=True,
      )
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
    self.assertEqual(code, 130)
    self.assertEqual(
        (self.folder / "stderr").read_text(),
        "error: interrupted; the same command goes on from the last "
        "checkpoint\n",
    )
    saved = os.listdir(self.folder / "checkpoints")
    self.assertNotEmpty([name for name in saved if name.isdigit()])
    with self.assertRaises(ProcessLookupError):  # Its whole session is gone.
      os.killpg(process.pid, 0)
