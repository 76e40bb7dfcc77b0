"""The worker of a node; started by its agent, see `launch.agent`.

Its last arguments are the name and the number of the node, and the number of
the socket to the agent.
"""

from collections.abc import Sequence
import faulthandler
import os
import pathlib
import signal
import socket
import sys
from typing import Any

from absl import app
from absl import flags

from bamboo_jax.base import json as json_lib
from launch import config_flag
from launch import program_cache

_CONFIG = config_flag.define("configs/default.py", "What to train.")
_WORKDIR = flags.DEFINE_string("workdir", None, "Where files go.")
_HOST = flags.DEFINE_string("host", "127.0.0.1", "Where to listen.")
_FAULTS = flags.DEFINE_string("faults", None, "CSV file of faults.")
_DIRECTOR = flags.DEFINE_integer("director", None, "Port of who injects them.")
_SECRET = flags.DEFINE_string("secret", None, "File of the shared secret.")
_PROGRAM_CACHE = program_cache.define()


def main(argv: Sequence[str]) -> None:
  """Trains until the run is done."""
  signal.signal(signal.SIGINT, signal.SIG_IGN)  # The agent decides.
  faulthandler.register(signal.SIGUSR1)  # Shows where every thread is.
  name, number, descriptor = argv[1], int(argv[2]), int(argv[3])
  from bamboo_jax.cluster import auth
  from bamboo_jax.cluster import client as client_lib
  from bamboo_jax.cluster import views
  from bamboo_jax.cluster.sessions import eras
  from bamboo_jax.faults import cluster_file
  from bamboo_jax.runtime import devices
  from bamboo_jax.runtime.wire import coordination
  from bamboo_jax.runtime.wire import transfer_log
  from bamboo_jax.train import fault_points
  from bamboo_jax.train import worker

  log = transfer_log.TransferLog()

  def stop(view: views.View) -> dict[str, Any]:
    begun = log.stop(view.number, alive=view.numbers)
    return json_lib.to_plain(begun)

  client = client_lib.Client(
      socket.socket(fileno=descriptor),
      number=number,
      on_lost=stop,
      begun=lambda: json_lib.to_plain(log.begun()),
      heartbeat_secs=_CONFIG.value.cluster.heartbeat_secs,
  )
  devices.use_virtual_devices(1)
  program_cache.use(_PROGRAM_CACHE.value)
  era = client.wait_era()
  coordination.connect(
      era.address,
      slot=eras.slot_of(era, number),
      num_slots=era.num_slots,
      number=number,
      host=_HOST.value,
  )
  client.send("era", number=era.number)
  director, faults = None, ()
  if _FAULTS.value:
    faults = cluster_file.parse_cluster_faults(
        pathlib.Path(_FAULTS.value).read_text(), source=_FAULTS.value
    )
  if _DIRECTOR.value:  # Also kills as a trace says, which needs no faults here.
    director = fault_points.Director(_DIRECTOR.value, number=number, name=name)
  given = worker.Surroundings(
      client=client,
      log=log,
      era=era,
      workdir=_WORKDIR.value,
      host=_HOST.value,
      secret=auth.read_secret(_SECRET.value),
      faults=faults,
      director=director,
  )
  worker.Worker(_CONFIG.value, given).run()
  sys.stdout.flush()
  os._exit(0)  # Peers are gone; a graceful goodbye would wait for them.


if __name__ == "__main__":
  app.run(main)
