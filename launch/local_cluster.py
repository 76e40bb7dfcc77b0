"""The processes of a cluster on this machine: etcd, coordinator, agents."""

from collections.abc import Callable, Mapping, Sequence
import pathlib
import signal
import subprocess
import sys
import time
from typing import Any

from bamboo_jax.cluster import children
from bamboo_jax.cluster import etcd as etcd_lib
from bamboo_jax.cluster import private_etcd
from bamboo_jax.cluster import registry as registry_lib
from bamboo_jax.plan import partition as partition_lib
from bamboo_jax.plan import placement as placement_lib
from bamboo_jax.plan import survival as survival_lib
from launch import cli

_LEAVE_SECS = 5.0


class LocalCluster:
  """Starts and ends processes; none outlives this one.

  Args:
    workdir: Logs go to its folder `logs`.
    arguments: Of every agent.
    slots: Number of slots of the coordination service.
    etcd: Host and port; None starts an etcd.
    say: Called with a line for whoever watches.

  Attributes:
    agents: The agents that have been started, by name.
    num_failed: How many of them have ended otherwise than they should.
  """

  def __init__(
      self,
      workdir: pathlib.Path,
      arguments: Sequence[str],
      *,
      slots: int,
      etcd: str | None,
      say: Callable[[str], None],
  ) -> None:
    self.agents: dict[str, subprocess.Popen] = {}
    self.num_failed = 0
    self._arguments = arguments
    self._slots = slots
    self._say = say
    self._logs = workdir / "logs"
    self._logs.mkdir(parents=True, exist_ok=True)
    self._others: list[subprocess.Popen] = []
    self._ended: set[str] = set()
    store = None
    if etcd is None:
      ports = (cli.free_port(), cli.free_port())
      store = private_etcd.PrivateEtcd(workdir / "etcd", ports=ports)
      self._others.append(store.process)
      etcd = f"127.0.0.1:{store.port}"
    self._etcd = etcd
    self._service = self._start_service()
    if store is not None:
      store.wait_ready()

  def start_agent(self, name: str, zone: str) -> None:
    """Starts an agent, which starts its worker."""
    command = [
        *self._python("launch.agent"),
        *self._arguments,
        f"--etcd={self._etcd}",
        f"--service={self._service}",
        f"--slots={self._slots}",
        f"--name={name}",
        f"--zone={zone}",
        "--verbosity=0",
    ]
    log = self._logs / f"{name}.agent.log"
    self.agents[name] = self._popen(command, log)

  def num_running(self) -> int:
    """Returns how many agents run; says of each that has failed why."""
    for name, process in self.agents.items():
      if name not in self._ended and process.poll() is not None:
        self._ended.add(name)
        if process.returncode:
          self.num_failed += 1
          log = self._logs / f"{name}.agent.log"
          tail = children.read_tail(log, num_lines=1)
          self._say(tail.removeprefix("error: ") or f"Node {name} has ended.")
    return len(self.agents) - len(self._ended)

  def leader(self) -> str:
    """Returns the name of the node that makes the next view."""
    host, port = etcd_lib.parse_endpoint(self._etcd)
    view = registry_lib.Registry(etcd_lib.Etcd(host, port), "run").read_view()
    return view.leader().name

  def close(self) -> None:
    """Ends all processes: agents first, so that they can say goodbye."""
    running = [p for p in self.agents.values() if p.poll() is None]
    for process in running:
      process.send_signal(signal.SIGTERM)
    end = time.monotonic() + _LEAVE_SECS
    for process in running:
      try:
        process.wait(max(0.0, end - time.monotonic()))
      except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for process in self._others:
      process.kill()
      process.wait()

  def _start_service(self) -> str:
    port = cli.free_port()
    log = self._logs / "coordinator.log"
    command = [
        *self._python("launch.coordinator"),
        f"--port={port}",
        f"--slots={self._slots}",
    ]
    self._others.append(self._popen(command, log))
    return f"127.0.0.1:{port}"

  def _python(self, module: str) -> list[str]:
    return [sys.executable, "-m", module]

  def _popen(
      self, command: Sequence[str], log: pathlib.Path
  ) -> subprocess.Popen:
    with open(log, "wb") as file:
      return subprocess.Popen(
          command,
          stdin=subprocess.DEVNULL,
          stdout=file,
          stderr=file,
          preexec_fn=children.die_with_parent,
      )


def place_nodes(
    config: Any, zones: Mapping[int, str]
) -> tuple[dict[int, int], survival_lib.Survival]:
  """Returns the number that each node gets, and what the run then survives.

  The numbers up to the number of places are those of the owners, pipeline by
  pipeline; the others are those of spares.

  Args:
    config: Of the run.
    zones: Zone of each node to begin with.
  """
  stages = partition_lib.Partition(tuple(range(config.pipeline.num_stages + 1)))
  placement = placement_lib.place_nodes(
      zones,
      [stages] * config.pipeline.num_pipelines,
      has_replicas=config.redundancy.mode != "none",
  )
  owners = [n for p in placement.pipelines for n in p.roles.owners]
  order = [*owners, *placement.spares]
  return {node: i for i, node in enumerate(order)}, placement.survival
