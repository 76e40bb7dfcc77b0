"""The parts of a run on this machine, checked before anything starts."""

from collections.abc import Sequence
import dataclasses
import importlib
import pathlib

from bamboo_jax import base, config as config_lib
from bamboo_jax.faults import faults as faults_lib
from bamboo_jax.net import addresses
from bamboo_jax.traces import replay as trace_replay, trace as trace_lib
from bamboo_jax.training.setup import sizes

HOST = "127.0.0.1"  # All processes are on this machine.


@dataclasses.dataclass(frozen=True)
class Setup:
  """The parts of a run on this machine.

  Attributes:
    workdir: Folder of the run on this machine.
    place: The folder or URL that the user has named.
    arguments: Command-line arguments of every agent.
    first_zones: Zone of each initial node.
    zones: Assigned in turn to nodes that join without one.
    faults_file: Written with `faults`, for the workers; None: they have one.
    replay: Trace to replay from the first step on, if any.
    gpus: GPUs of this machine, assigned in turn.
    page_port: Port of a page on the run, 0 for a free one; None: no page.
    metrics_port: Port at which the first node serves metrics for Prometheus;
      each later one has the next port. None: no metrics.
  """

  workdir: pathlib.Path
  place: str
  arguments: Sequence[str]
  first_zones: Sequence[str]
  zones: Sequence[str]
  faults: Sequence[faults_lib.Fault] = ()
  faults_file: pathlib.Path | None = None
  replay: trace_replay.Replay | None = None
  gpus: Sequence[str] = ()
  page_port: int | None = None
  metrics_port: int | None = None

  def __post_init__(self) -> None:
    faults_lib.check_nodes(
        self.faults, num_nodes=len(self.first_zones), zones=self.zones, source="--faults"
    )

  def check_ports(self) -> None:
    """Raises `ValueError` if a port of the page or of metrics is in use."""
    if self.page_port is not None:
      addresses.check_free("--page_port", HOST, self.page_port)
    if (first := self.metrics_port) is not None:
      for port in range(first, first + len(self.first_zones)):
        addresses.check_free("--metrics_port", HOST, port)

  def write_faults(self) -> None:
    if self.faults_file is not None:
      base.write_atomically(self.faults_file, faults_lib.render(self.faults))


def check(config: config_lib.Config, zones: Sequence[str]) -> None:
  """Raises `ValueError` if config or zones do not fit a cluster."""
  from bamboo_jax.training.setup import build  # Takes a second: JAX.

  build.check_environment()
  if not all(zones) or not zones:
    raise ValueError(f"--zones must be names such as a,b,c, got {','.join(zones)!r}.")


def find_first_zones(
    config: config_lib.Config,
    num_nodes: int | None,
    zones: Sequence[str],
    replay: trace_replay.Replay | None,
) -> list[str]:
  """Returns the zone of each initial node; checks as `check` first."""
  check(config, zones)
  pipeline = config.pipeline
  needed = pipeline.num_pipelines * pipeline.num_stages
  if replay is None:
    named = [""] * (num_nodes or sizes.num_nodes(config))
    given = f"--nodes={len(named)}"
  else:
    named = list(map(trace_lib.zone_of, replay.first))
    given = f"a trace that starts with {len(named)}"
  if len(named) < needed:
    raise ValueError(
        f"{pipeline.num_pipelines} pipelines of {pipeline.num_stages} stages "
        f"need at least {needed} nodes, got {given}."
    )
  return [zone or zones[i % len(zones)] for i, zone in enumerate(named)]


def with_random_kills(
    setup: Setup, config: config_lib.Config, num_kills: int, *, seed: int, kinds: Sequence[str]
) -> Setup:
  """Returns the setup with random kills, of which the workers read a file."""
  faults = faults_lib.make_random_kills(
      num_kills,
      seed=seed,
      num_steps=config.num_steps,
      num_pipelines=config.pipeline.num_pipelines,
      num_stages=config.pipeline.num_stages,
      kinds=kinds,
      zones=setup.zones,
  )
  path = setup.workdir / "random_kills.csv"
  return dataclasses.replace(
      setup, arguments=[*setup.arguments, f"--faults={path}"], faults=faults, faults_file=path
  )


def prepare(config: config_lib.Config, place: str) -> bool:
  """Prepares the job of all nodes; returns whether they can be forked.

  Raises `base.CheckpointError` if `place` is of another run.
  """
  for name in ("bamboo_jax.local_cluster.node", "bamboo_jax.training.run"):
    importlib.import_module(name)  # Takes a second: JAX.
  from bamboo_jax.training.record import workdir as workdir_lib
  from bamboo_jax.training.setup import job as job_lib, saving

  can_fork = job_lib.prepare(config)
  saving.check_same(config, job_lib.peek(), workdir_lib.Workdir.at(place))
  return can_fork
