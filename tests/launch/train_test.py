"""The command that trains: how it ends, and what is there afterwards."""

import os
import re
import signal
import subprocess
import sys
import threading

from bamboo_jax.checkpoint import manifest
from tests.launch import commands

_DEADLINE_SECS = 240


class TrainTest(commands.CommandCase):

  def test_an_interrupt_saves_the_step(self):  # Compiles in a process of its own: 8 s.
    command = [sys.executable, "-m", "launch.train", "--config=tests/tiny.py"]
    options = [f"--workdir={self.folder}", "--config.num_steps=1000000"]
    options.append("--config.checkpoint.every_steps=0")
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
          if line.startswith("step="):
            last = int(re.match(r"step=(\d+) ", line)[1])
            if last == 3:
              process.send_signal(signal.SIGINT)
        code = process.wait()
      finally:
        watchdog.cancel()
        process.kill()
    self.assertEqual(code, 130)
    # On a slow machine others say before that JAX is imported.
    self.assertEqual(
        (self.folder / "stderr").read_text().splitlines()[-2:],
        [
            "interrupted: finishing and saving the step; a second signal ends at once",
            f"error: interrupted; the same command goes on from step {last}, which is saved",
        ],
    )
    self.assertEqual([n.step for n in manifest.find(self.folder / "checkpoints")], [last])
    with self.assertRaises(ProcessLookupError):  # Its whole session is gone.
      os.killpg(process.pid, 0)
