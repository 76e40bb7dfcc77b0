"""The process of one agent: its options, and its signals."""

import asyncio
import dataclasses
from importlib import metadata
import os
import pathlib
import resource
import signal
from typing import Any

from absl import logging

from bamboo_jax import base, config as config_lib
from bamboo_jax.cluster import children, copies, mirror, records as records_lib
from bamboo_jax.cluster.agent import agent as agent_lib, exporter
from bamboo_jax.local_cluster import machine, narrator as narrator_lib
from bamboo_jax.net import identity as identity_lib
from bamboo_jax.runtime import settings
from bamboo_jax.training.setup import sizes

_PROTOCOL = 15  # Version of the messages between processes.
_PACKAGES = ("bamboo_jax", "jax", "jaxlib")


def make_options(
    config: config_lib.Config, *, workdir: str, num_nodes: int | None, name: str, **given: Any
) -> agent_lib.AgentOptions:
  """Returns the options of an agent of a run.

  `given` are fields of `AgentOptions` that do not follow from the others.
  """
  return agent_lib.AgentOptions(
      name=name,
      workdir=workdir,
      num_nodes=num_nodes or sizes.num_nodes(config),
      place=lambda zones: machine.place_nodes(config, zones)[0],
      config={
          "protocol": _PROTOCOL,
          "version": {name: metadata.version(name) for name in _PACKAGES},
          "nodes": num_nodes,
          "config": config.to_dict(),
          "environment": settings.read_given(os.environ),
          "code": base.find_code(config.to_dict()),
      },
      log=str(mirror.local(workdir) / "logs" / f"{name}.log"),
      limits=config.cluster,
      **given,
  )


def run(
    records: records_lib.Records,
    options: agent_lib.AgentOptions,
    identity: identity_lib.Identity,
    spare: copies.Spare | None = None,
    *,
    metrics_port: int | None = None,
    metrics_host: str = "127.0.0.1",
    narrator: narrator_lib.Narrator | None = None,
) -> bool:
  """Runs an agent until its worker, and restarted workers, have ended; blocks.

  Returns whether the run is complete; otherwise the node has left after a notice.

  The first worker is `spare`, if given. Metrics for Prometheus are served at
  `metrics_port` of `metrics_host`; if that is in use, a warning is logged.
  `narrator` shows how the run goes.

  Raises `base.EndedError` after a mistake of the user, `base.NodeFailedError`
  if this node failed, `KeyboardInterrupt` if it was told to end at once.
  """
  allow_files()
  agent: agent_lib.Agent | None = None
  if metrics_port is not None:
    try:
      exporter.serve(metrics_port, host=metrics_host, agent=lambda: agent)
    except (OSError, OverflowError) as error:  # The latter: above 65535.
      logging.warning("No metrics at port %d: %s.", metrics_port, error)
  while True:
    agent = agent_lib.make_agent(records, options, identity, spare)
    if narrator is not None:
      narrator.follow(agent)
    reason = asyncio.run(_run(agent))
    if not agent.must_restart:
      break
    options, spare = dataclasses.replace(options, is_again=True), None
  if narrator is not None:
    narrator.close()
  if reason and agent.is_mistake:  # The last line of the log explains it.
    tail = children.read_tail(pathlib.Path(options.log), num_lines=1)
    raise base.EndedError(tail.removeprefix("error: ") or reason)
  if reason:
    if "exit status" in reason:  # It was not killed, so its log has the reason.
      if tail := children.read_tail(pathlib.Path(options.log), num_lines=3):  # No disk is full.
        reason += f". Its log ends: {tail}"
    raise base.NodeFailedError(f"Node {options.name}: {reason}.")
  return not agent.has_left


def allow_files() -> None:
  """Raises the limit of open files; each other node takes two sockets."""
  _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
  resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def _run(agent: agent_lib.Agent) -> str:
  """Runs the agent; returns why it did not end well, "" if it did."""
  loop, task = asyncio.get_running_loop(), asyncio.current_task()
  assert task is not None

  def hear(number: signal.Signals) -> None:
    if not agent.give_notice(number.name) and number == signal.SIGTERM:
      task.cancel()

  loop.add_signal_handler(signal.SIGINT, task.cancel)
  # Some schedulers announce the end of the job by SIGUSR1, and a terminal that closes by SIGHUP.
  for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
    if number == signal.SIGTERM or signal.getsignal(number) is not signal.SIG_IGN:  # By `nohup`.
      loop.add_signal_handler(number, hear, number)
  try:
    return await agent.run()
  except asyncio.CancelledError:
    raise KeyboardInterrupt from None
