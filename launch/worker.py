"""The worker of a node; started by its agent, see `launch.agent`.

Its last arguments are the name and the number of the node, for how many seconds
the agent had been there, and the number of the socket to it.
"""

from collections.abc import Sequence
import faulthandler
import os
import signal
import socket
import sys
import time

from absl import app
from absl import flags
from absl import logging

from bamboo_jax.runtime import accelerator
from launch import config_flag
from launch import identity_flags
from launch import program_cache

_CONFIG = config_flag.define("configs/default.py", "What to train.")
_WORKDIR = flags.DEFINE_string("workdir", None, "Where files go.")
_HOST = flags.DEFINE_string("host", "127.0.0.1", "Where to listen.")
_FAULTS = flags.DEFINE_string("faults", None, "CSV file of faults.")
_DIRECTOR = flags.DEFINE_integer("director", None, "Port of who injects them.")
_DEVICE_MEMORY_FRACTION = flags.DEFINE_float(
    "device_memory_fraction", None, "Part of the memory of its GPU."
)
_PROGRAM_CACHE = program_cache.define()


def main(argv: Sequence[str]) -> None:
  """Trains until the run is done."""
  signal.signal(signal.SIGINT, signal.SIG_IGN)  # The agent decides.
  faulthandler.register(signal.SIGUSR1)  # Shows where every thread is.
  started_secs = time.perf_counter() - float(argv[3])
  name, number, descriptor = argv[1], int(argv[2]), int(argv[4])
  accelerator.take_fraction(os.environ, _DEVICE_MEMORY_FRACTION.value)
  from bamboo_jax.train import run

  programs = program_cache.use(_PROGRAM_CACHE.value)
  run.train_in_cluster(
      _CONFIG.value,
      socket.socket(fileno=descriptor),
      workdir=_WORKDIR.value,
      name=name,
      number=number,
      host=_HOST.value,
      identity=identity_flags.make("worker", name, host=_HOST.value),
      faults=_FAULTS.value,
      director=_DIRECTOR.value,
      started_secs=started_secs,
  )
  logging.info(
      "Programs: %d compiled, %d loaded.",
      programs.num_compiled,
      programs.num_loaded,
  )
  sys.stdout.flush()
  os._exit(0)  # Peers are gone; a graceful goodbye would wait for them.


if __name__ == "__main__":
  app.run(main)
