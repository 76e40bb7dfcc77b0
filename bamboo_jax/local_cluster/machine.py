"""The agents of a cluster on this machine, and their places."""

from collections.abc import Mapping, Sequence
import contextlib
import functools
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import numpy as np

from bamboo_jax import base, config as config_lib
from bamboo_jax.cluster import children, copies, judge, records as records_lib, views
from bamboo_jax.plan import partition as partition_lib
from bamboo_jax.recovery import placement as placement_lib, survival as survival_lib
from bamboo_jax.runtime import accelerator

_NAME = "bamboo cluster"
_LEAVE_SECS = 5.0
_GOOD_ENDS = (0, children.LEFT)


class LocalCluster:
  """Starts and ends processes; none outlives this one.

  Logs go to `workdir/logs`. Until `take_folder` nothing is written.

  Attributes:
    records: Those of the run, after `take_folder`.
    run: The view from which it begins.
    num_failed: Number of agents that ended with an error.
    mistake: A mistake of the user with which an agent ended; "" without any.
  """

  records: records_lib.Records
  run: base.ViewId

  def __init__(self, workdir: pathlib.Path, place: str, gpus: Sequence[str] = ()) -> None:
    self.num_failed, self.mistake = 0, ""
    self._agents: dict[str, subprocess.Popen[bytes] | copies.Copy] = {}
    self._zones: dict[str, str] = {}  # Of started nodes.
    self._gpus, self._gpu_of = gpus, dict[str, str]()
    self._place = place  # The same folder, or a URL.
    self.workdir, self.logs = workdir, workdir / "logs"
    self._ended: set[str] = set()

  def take_folder(self, patience_secs: float) -> None:
    """Begins a run in the folder.

    Raises `ValueError` if members of a former run are alive, which have
    `patience_secs` to answer.
    """
    self.records = records_lib.open_folder(self.workdir, self._place)
    # Two commands that begin at once in one place must not take one view for their own.
    who = f"{_NAME} on {socket.gethostname()} (process {os.getpid()})"
    self.run = judge.begin_run(self.records, who, patience_secs).run

  def start_agent(
      self, name: str, zone: str, *, arguments: Sequence[str], is_copy: bool = False
  ) -> None:
    """Starts an agent, which starts its worker, on the GPU with the fewest nodes, if any.

    With `is_copy` both are forks of this process.
    """
    command = [
        *(sys.executable, "-m", "bamboo_jax.launch.agent", f"--name={name}"),
        *arguments,
        f"--zone={zone}",
        "--verbosity=0",
    ]
    self.logs.mkdir(parents=True, exist_ok=True)
    log = self.logs / f"{name}.agent.log"
    if is_copy:
      run = functools.partial(copies.run, command, log=log)
      self._agents[name] = copies.Copy(run)
    else:
      if self._gpus:
        used = [gpu for other, gpu in self._gpu_of.items() if self._agents[other].poll() is None]
        self._gpu_of[name] = min(self._gpus, key=used.count)
      environ = accelerator.give_gpu(os.environ, self._gpu_of.get(name))
      self._agents[name] = children.start(command, log, env=environ)
    self._zones[name] = zone  # Last, for threads that look for it.

  @property
  def num_running(self) -> int:
    """Number of agents that ran at the last call of `tend`."""
    return len(self._agents) - len(self._ended)

  def find_running(self, zone: str) -> list[str]:
    """Returns the nodes of a zone whose agents run."""
    nodes = [*self._zones.items()]
    return [n for n, z in nodes if z == zone and self._agents[n].poll() is None]

  def has_failed(self, name: str) -> bool:
    """Returns whether an agent had failed at the last call of `tend`."""
    return name in self._ended and self._agents[name].returncode not in _GOOD_ENDS

  def kill_agent(self, name: str) -> None:
    """Kills the agent of a node, and its worker with it."""
    self._agents[name].kill()

  def give_notice(self, name: str) -> None:
    """Announces the preemption of a node to its agent, see `bamboo agent`."""
    self._agents[name].terminate()

  def stop(self) -> None:
    """Tells the nodes to save the step and end; call it again, as it may fail."""
    with contextlib.suppress(OSError):  # The folder is away for a moment.
      judge.stop(self.records, _NAME)

  def find_number(self, name: str) -> base.NodeId | None:
    """Returns the number of a node in the run; None if no view has it, or that is not known."""
    with contextlib.suppress(OSError):  # The folder is away for a moment.
      for view in reversed(self._read_views()):
        for member in view.members:
          if member.name == name:
            return member.number
    return None

  def _read_views(self) -> list[views.View]:
    return judge.views_after(self.records, self.run)

  def has_live_members(self) -> bool:
    """Returns whether an agent of the newest view runs; True if nobody knows."""
    running = {name for name, agent in self._agents.items() if agent.poll() is None}
    try:
      return any(m.name in running for view in self._read_views()[-1:] for m in view.members)
    except OSError:  # As above.
      return True

  def close(self) -> None:
    """Ends all processes."""
    running = [p for p in self._agents.values() if p.poll() is None]
    for process in running:
      process.send_signal(signal.SIGINT)  # One that has just started ignores
      process.send_signal(signal.SIGTERM)  # it, and is ended by this.
    end = time.monotonic() + _LEAVE_SECS
    for process in running:
      try:
        process.wait(max(0.0, end - time.monotonic()))
      except subprocess.TimeoutExpired:
        process.kill()
        process.wait()

  def tend(self) -> dict[str, str]:
    """Returns a message for each agent that failed since the last call."""
    said = {}
    children.reap_orphans({process.pid for process in self._agents.values()})
    for name, process in self._agents.items():
      if name not in self._ended and (code := process.poll()) is not None:
        self._ended.add(name)
        if code not in _GOOD_ENDS:
          self.num_failed += 1
          # If it was not killed, its log may end with the reason.
          why, log = "", self.logs / f"{name}.agent.log"
          if code > 0 and log.exists():
            why = children.read_tail(log, num_lines=1).removeprefix("error: ")
          if code == children.MISTAKE:
            self.mistake = why
          why = why or f"Node {name}: its agent {children.describe_exit(code)}."
          said[name] = (
              f"{why} {self.num_running} of {self.num_running + 1} nodes are left; "
              f"agent: pid {process.pid}, log {log}"
          )
    return said


def place_nodes(
    config: config_lib.Config, zones: Mapping[base.NodeId, str]
) -> tuple[dict[base.NodeId, int], survival_lib.Survival]:
  """Returns the number of each of the first nodes, and the failures that the run then survives.

  It survives most. The first numbers are those of owners, pipeline by pipeline, then of spares.
  If a slow link joins regions, whole pipelines are in one as far as possible; before the
  first step the workers, which know the costs, decide whether to cut them instead.
  """
  stages = partition_lib.Partition(tuple(range(config.pipeline.num_stages + 1)))
  partitions = (stages,) * config.pipeline.num_pipelines
  has_replicas = config.redundancy.has_replicas
  regions: Sequence[str] = ()
  if config.plan.region_link is not None:
    names = [*map(placement_lib.region_of, zones.values())]
    num_places = len(partitions) * stages.num_stages
    near = np.diag([n % stages.num_stages > 0 for n in range(1, num_places)], k=1)
    regions = placement_lib.divide(partitions, names, near)[0]
  order = placement_lib.arrange(
      partitions, [*zones], zones, has_replicas=has_replicas, regions=regions
  )
  pipelines = placement_lib.make_pipelines(partitions, order, has_replicas)
  survival = survival_lib.find_survival(pipelines, zones)
  return {node: i for i, node in enumerate(order)}, survival
