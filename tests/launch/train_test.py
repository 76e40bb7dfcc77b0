"""The command that trains: how it ends, and what is there afterwards."""

import re
import signal

from bamboo_jax.checkpoint import manifest
from tests.launch import commands


class TrainTest(commands.CommandCase):

  CHANGES = {"num_steps": 1_000_000}

  def test_an_interrupt_saves_the_step(self):  # Compiles in a process of its own: 8 s.
    process = self.listen(self.start("train"))
    steps = lambda: re.findall(r"(?m)^step=(\d+) ", "\n".join(self.said))
    self.wait_for(lambda: "3" in steps(), "third step")
    process.send_signal(signal.SIGINT)
    self.assertEqual(process.wait(300), 130)
    end = r"^error: interrupted; the same command goes on from step (\d+), which is saved$"
    last = self.wait_for(lambda: re.search(end, self.said[-1]), "last line")[1]
    self.assertEqual(steps()[-1], last)
    told = "interrupted: finishing and saving the step; a second signal ends at once"
    self.assertIn(told, self.said)
    saved = manifest.find(self.folder / "run" / "checkpoints")
    self.assertEqual([name.step for name in saved], [int(last)])
    self.assertEqual(commands.processes_that_name(str(self.folder)), [])
