r"""Trains on a cluster on this machine: an agent and a worker for each node.

python -m launch.cluster \
  --config=configs/quickstart.py \
  --workdir=runs/cluster \
  --nodes=8 \
  --zones=a,b,c \
  --faults=configs/quickstart_faults.csv

Starts an etcd and the coordination service of JAX too, and ends all of them.
"""

import collections
from collections.abc import Sequence
import json
import pathlib
import queue
import statistics
import sys
import time
from typing import Any

from absl import flags

from bamboo_jax.cluster import recoveries as recoveries_lib
from bamboo_jax.faults import cluster_file
from bamboo_jax.metrics import jsonl
from bamboo_jax.metrics import progress as progress_lib
from launch import cli
from launch import config_flag
from launch import fault_director
from launch import local_cluster

_CONFIG = config_flag.define("configs/default.py", "What to train.")
_WORKDIR = flags.DEFINE_string(
    "workdir", None, "Where checkpoints and metrics go.", required=True
)
_NODES = flags.DEFINE_integer(
    "nodes", None, "Number of nodes; those the config does not need are spares."
)
_ZONES = flags.DEFINE_list("zones", ["a"], "Zones, given out in turn.")
_ETCD = flags.DEFINE_string(
    "etcd", None, "Host and port of etcd; without it one is started."
)
_FAULTS = flags.DEFINE_string(
    "faults", None, "CSV file of what happens to nodes: step,node,at,kind."
)
_SLOTS = flags.DEFINE_integer("slots", 64, "One more than nodes ever.")
_POLL_SECS = 0.05
_SHOWN = ("loss", "tokens_per_sec", "step_ms", "view")


def main(argv: Sequence[str]) -> None:
  """Starts everything, shows progress, and waits."""
  cli.check_no_arguments(argv)
  config = _CONFIG.value
  needed = config.pipeline.num_pipelines * config.pipeline.num_stages
  num_nodes = _NODES.value or needed + config.redundancy.spares
  if num_nodes < needed:
    raise ValueError(
        f"--nodes must be at least {needed}, which are "
        f"{config.pipeline.num_pipelines} pipelines of "
        f"{config.pipeline.num_stages} stages, got {num_nodes}."
    )
  if config.pipeline.executor != "rows":
    raise ValueError(
        "config.pipeline.executor must be 'rows' in a cluster, got "
        f"{config.pipeline.executor!r}."
    )
  for section in ("evaluate", "checkpoint"):
    if config[section].every_steps:
      _say(f"note: config.{section}.every_steps does not apply to a cluster")
  workdir = pathlib.Path(_WORKDIR.value)
  summary = workdir / "summary.json"
  if summary.exists() or (workdir / "metrics.jsonl").exists():
    raise ValueError(
        f"--workdir={workdir} holds a run already, and a cluster cannot go on "
        "with one; name another folder."
    )
  zones = dict(enumerate(_zone_of(i) for i in range(num_nodes)))
  _say(local_cluster.place_nodes(config, zones)[1].render())
  run = _Run(workdir, num_nodes, _read_faults(config))
  try:
    run.start()
    run.wait()
  finally:
    run.cluster.close()
  if not summary.exists():
    raise ValueError(f"The run has ended early; see {workdir / 'logs'}.")
  _report(summary, run.director)


class _Run:
  """The cluster, what happens to it, and what is shown of it."""

  def __init__(
      self,
      workdir: pathlib.Path,
      num_nodes: int,
      faults: Sequence[cluster_file.ClusterFault],
  ) -> None:
    self._metrics = workdir / "metrics.jsonl"
    self._num_nodes = num_nodes
    self._num_started = self._num_shown = 0
    self._step_secs = collections.deque([1.0], maxlen=9)
    self._zones: dict[str, str] = {}
    # Processes die with the thread that has started them, so that is this one.
    self._joins = queue.SimpleQueue()
    self.director = fault_director.Director(
        faults,
        step_secs=lambda: statistics.median(list(self._step_secs)),
        join=self._joins.put_nowait,
        kill_agent=lambda name: self.cluster.agents[name].kill(),
        zone_of=lambda name: self._zones[name],
        leader=lambda: self.cluster.leader(),
    )
    self.cluster = local_cluster.LocalCluster(
        workdir,
        [
            *_shared_arguments(),
            f"--nodes={num_nodes}",
            f"--director={self.director.port}",
        ],
        slots=_SLOTS.value,
        etcd=_ETCD.value,
        say=_say,
    )

  def start(self) -> None:
    """Starts the nodes to begin with."""
    for _ in range(self._num_nodes):
      self.start_node()

  def start_node(self) -> None:
    """Starts one node more, in the next zone."""
    name = f"n{self._num_started}"
    self._zones[name] = _zone_of(self._num_started)
    self._num_started += 1
    self.cluster.start_agent(name, self._zones[name])

  def wait(self) -> None:
    """Shows progress until all agents have ended."""
    while self.cluster.num_running():
      while not self._joins.empty():
        self._joins.get()
        self.start_node()
      self._show_progress()
      time.sleep(_POLL_SECS)
      if not self._num_shown and self.cluster.num_failed:
        raise ValueError("A node has failed before the first step.")
    self._show_progress()

  def _show_progress(self) -> None:
    if not self._metrics.exists():
      return
    lines = jsonl.read_lines(self._metrics)
    for line in lines[self._num_shown :]:
      if "event" in line:
        continue
      self._step_secs.append(line.get("step_ms", 1e3) / 1e3)
      shown = {k: line[k] for k in _SHOWN if line.get(k) is not None}
      _say(progress_lib.render_line({"step": line["step"]} | shown))
    self._num_shown = len(lines)


def _read_faults(config: Any) -> tuple[cluster_file.ClusterFault, ...]:
  """Returns the faults of the file, checked."""
  if not _FAULTS.value:
    return ()
  faults = cluster_file.parse_cluster_faults(
      pathlib.Path(_FAULTS.value).read_bytes().decode(errors="replace"),
      source=_FAULTS.value,
  )
  cluster_file.check_cluster_faults(
      faults,
      num_steps=config.num_steps,
      num_pipelines=config.pipeline.num_pipelines,
      num_stages=config.pipeline.num_stages,
      source=_FAULTS.value,
  )
  return faults


def _report(summary: pathlib.Path, director: fault_director.Director) -> None:
  """Puts the times of deaths into the summary, and shows it."""
  content = json.loads(summary.read_text())
  content["recoveries"] = recoveries_lib.with_kill_times(
      content["recoveries"], director.kills
  )
  summary.write_text(json.dumps(content, indent=2) + "\n")
  for recovery in content["recoveries"]:
    print(f"recovery {json.dumps(recovery)}")
  print(f"state_sha256={content['state_sha256']}")


def _zone_of(index: int) -> str:
  return _ZONES.value[index % len(_ZONES.value)]


def _say(text: str) -> None:
  print(text, flush=True)


def _shared_arguments() -> list[str]:
  """Returns the arguments of this command that agents take too."""
  names = ("--config", "--workdir", "--faults")
  return [
      argument
      for argument in sys.argv[1:]
      if argument.partition("=")[0].partition(".")[0] in names
  ]


if __name__ == "__main__":
  cli.run(main, if_interrupted="all processes have ended")
