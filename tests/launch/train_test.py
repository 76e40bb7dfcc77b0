"""The command that trains: how it ends, and what is there afterwards."""

import signal

from bamboo_jax.checkpoint import manifest
from tests.launch import commands


class TrainTest(commands.CommandCase):

  CHANGES = {"num_steps": 1000, "pipeline.num_pipelines": 1, "pipeline.num_stages": 2}
  HELD_FROM = 3

  def test_an_interrupt_saves_the_step(self):  # Compiles in a process of its own: 8 s.
    process = self.listen(self.start("train"))
    self.hear("step=3 ")
    process.send_signal(signal.SIGINT)
    self.assertEqual(process.wait(300), 130)
    (last,) = (name.step for name in manifest.find(self.folder / "run" / "checkpoints"))
    self.hear(f"step={last} ")
    self.hear("interrupted: finishing and saving the step; a second signal ends at once")
    self.hear(f"error: interrupted; the same command goes on from step {last}, which is saved")
    self.assertEqual(commands.processes_that_name(str(self.folder)), [])
