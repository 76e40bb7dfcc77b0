"""The worker of a node; started by its agent, see `bamboo agent`.

Its last arguments are the number of the node, the stamp of the run, the age of
the agent in seconds, and the file descriptor of the socket to it.
"""

from collections.abc import Sequence
import faulthandler
import os
import signal
import socket
import sys
import time
import traceback

from absl import app, logging

from bamboo_jax import base
from bamboo_jax.base import logs
from bamboo_jax.cli import flagset
from bamboo_jax.cluster import children, mirror
from bamboo_jax.launch import cli, node
from bamboo_jax.runtime import accelerator


def main(argv: Sequence[str]) -> None:
  """Trains until the run is done; the exit status says what an error means."""
  try:
    _train(flagset.read(node.NodeFlags, ()), argv)
  except base.NodeFailedError as error:
    cli.fail(f"{error}", children.LOCAL)
  except Exception as error:
    own = base.render_own_traceback(error)
    if not isinstance(error, ValueError) and not own:
      raise
    print(own or traceback.format_exc(), file=sys.stderr, end="")
    cli.fail(base.describe_error(error), children.MISTAKE)
  sys.stdout.flush()
  os._exit(0)  # Peers are gone; a graceful goodbye would wait for them.


def _train(flags: node.NodeFlags, argv: Sequence[str]) -> None:
  signal.signal(signal.SIGINT, signal.SIG_IGN)  # The agent decides.
  faulthandler.register(signal.SIGUSR1)  # Shows where every thread is.
  logs.use(flags.name)
  # Also the start of this process is charged: one clock serves all processes of a machine.
  started_secs = time.perf_counter() - (time.monotonic() - float(argv[3]))
  accelerator.take_fraction(os.environ, flags.device_memory_fraction)
  from bamboo_jax.runtime import program_store
  from bamboo_jax.training import run

  folder, programs_folder = mirror.local(flags.workdir), flags.program_cache
  if programs_folder is None:
    programs_folder = str(folder / "programs")
  programs = program_store.use(programs_folder)
  run.train_in_cluster(
      flags.config,
      socket.socket(fileno=int(argv[4])),
      workdir=flags.workdir,
      name=flags.name,
      number=base.NodeId(int(argv[1])),
      stamp=argv[2],
      host=flags.host,
      identity=flags.identity.make("worker", flags.name, host=flags.host, folder=folder),
      faults=flags.faults,
      faults_run=flags.faults_run,
      started_secs=started_secs,
  )
  logging.info("Programs: %d compiled, %d loaded.", programs.num_compiled, programs.num_loaded)


if __name__ == "__main__":
  flagset.define(node.NodeFlags)
  app.run(main, flags_parser=cli.parse_flags)
