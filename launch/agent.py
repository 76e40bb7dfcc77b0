r"""The agent of one node: starts its worker and stays in touch with the others.

python -m launch.agent --config=configs/quickstart.py --workdir=runs/cluster \
  --etcd=127.0.0.1:2379 --name=n0 --zone=a

One for each node; `launch.cluster` starts all of them on one machine. The first
SIGTERM announces that the node will be preempted: others take over what it
does, and it ends. A second one, or SIGINT, ends it at once.
"""

import asyncio
from collections.abc import Sequence
from importlib import metadata
import os
import pathlib
import signal
import sys
from typing import Any

from absl import flags

from bamboo_jax.cluster import auth
from bamboo_jax.cluster import children
from bamboo_jax.cluster import detection
from bamboo_jax.cluster import notices as notices_lib
from bamboo_jax.cluster.agent import agent as agent_lib
from bamboo_jax.cluster.agent import options as agent_options
from bamboo_jax.cluster.sessions import eras
from bamboo_jax.cluster.store import etcd as etcd_lib
from bamboo_jax.local_cluster import machine
from launch import cli
from launch import config_flag

_CONFIG = config_flag.define("configs/default.py", "What to train.")
_WORKDIR = flags.DEFINE_string(
    "workdir", None, "Where checkpoints and metrics go.", required=True
)
_ETCD = flags.DEFINE_string("etcd", None, "Host and port.", required=True)
_SERVICE = flags.DEFINE_string(
    "service",
    None,
    "Host and port of a `launch.coordinator` without --etcd; one with it is "
    "found in etcd.",
)
_SLOTS = flags.DEFINE_integer("slots", 64, "Number of slots of --service.")
_NAME = flags.DEFINE_string("name", None, "Of the node.", required=True)
_ZONE = flags.DEFINE_string("zone", "", "Zone that the node is in.")
_HOST = flags.DEFINE_string("host", "127.0.0.1", "Where to listen.")
_RUN = flags.DEFINE_string("run", "run", "Name of the run in etcd.")
_NODES = flags.DEFINE_integer("nodes", None, "Number of nodes to begin with.")
_SECRET = flags.DEFINE_string("secret", None, "File of the shared secret.")
_NOTICE = flags.DEFINE_enum(
    "notice",
    "none",
    ("none", *notices_lib.CLOUDS),
    "Cloud that gives notice before it preempts the node.",
)
_NOTICE_URL = flags.DEFINE_string(
    "notice_url", None, "Metadata server in place of the cloud's, for tests."
)
_FAULTS = flags.DEFINE_string("faults", None, "CSV file of faults.")
_DIRECTOR = flags.DEFINE_integer("director", None, "Port of who injects them.")

# What the worker gets as it was given.
_SHARED = (
    "config",
    "workdir",
    "host",
    "secret",
    "faults",
    "director",
)
_PROTOCOL = 1  # Of what processes say to each other.
_PACKAGES = ("bamboo_jax", "jax", "jaxlib")


def main(argv: Sequence[str]) -> None:
  """Lives as long as its worker."""
  cli.check_no_arguments(argv)
  config = _CONFIG.value
  secret = auth.read_secret(_SECRET.value)
  auth.check_host(_HOST.value, secret=secret)
  host, port = etcd_lib.parse_endpoint(_ETCD.value)
  logs = pathlib.Path(_WORKDIR.value) / "logs"
  logs.mkdir(parents=True, exist_ok=True)
  log = logs / f"{_NAME.value}.log"
  pipeline = config.pipeline
  num_nodes = pipeline.num_pipelines * pipeline.num_stages
  options = agent_options.Options(
      run=_RUN.value,
      name=_NAME.value,
      zone=_ZONE.value,
      host=_HOST.value,
      num_nodes=_NODES.value or num_nodes + config.redundancy.spares,
      max_nodes=_SLOTS.value - 1 if _SERVICE.value else None,
      place=lambda zones: machine.place_nodes(config, zones)[0],
      config=_find_shared(config),
      command=[
          sys.executable,
          "-m",
          "launch.worker",
          *cli.find_arguments(_SHARED, sys.argv[1:]),
      ],
      log=str(log),
      limits=detection.Limits(**config.cluster),
      notices=_make_poller(),
      secret=secret,
      era=_fixed_era(),
  )
  while options is not None:
    agent = agent_lib.Agent(etcd_lib.Etcd(host, port), options)
    reason = asyncio.run(_run(agent))
    options = agent.successor
  if reason:
    if "exit status" in reason:  # It has failed by itself, and said why.
      reason += f". Its log ends: {children.read_tail(log, num_lines=3)}"
    raise ValueError(f"Node {_NAME.value}: {reason}.")
  os._exit(0)


def _find_shared(config: Any) -> dict[str, Any]:
  """Returns what must be the same on all nodes."""
  versions = {name: metadata.version(name) for name in _PACKAGES}
  return {
      "protocol": _PROTOCOL,
      "version": versions,
      "nodes": _NODES.value,
      "workdir": str(pathlib.Path(_WORKDIR.value).absolute()),
      "config": config.to_dict(),
  }


async def _run(agent: agent_lib.Agent) -> str:
  """Runs the agent; returns why it has ended otherwise than it should.

  Raises:
    KeyboardInterrupt: It was told to end at once.
  """
  loop, task = asyncio.get_running_loop(), asyncio.current_task()

  def hear_sigterm() -> None:
    if not agent.give_notice("SIGTERM"):
      task.cancel()

  loop.add_signal_handler(signal.SIGTERM, hear_sigterm)
  loop.add_signal_handler(signal.SIGINT, task.cancel)
  try:
    return await agent.run()
  except asyncio.CancelledError:
    raise KeyboardInterrupt from None


def _fixed_era() -> eras.Era | None:
  if _SERVICE.value is None:
    return None
  etcd_lib.parse_endpoint(_SERVICE.value)
  return eras.Era(0, _SERVICE.value, _SLOTS.value)


def _make_poller() -> notices_lib.Poller | None:
  if _NOTICE.value == "none":
    return None
  return notices_lib.Poller(_NOTICE.value, url=_NOTICE_URL.value)


if __name__ == "__main__":
  cli.run(main)
