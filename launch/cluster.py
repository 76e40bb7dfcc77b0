r"""Trains on a cluster on this machine: an agent and a worker for each node.

bamboo cluster --config=quickstart --workdir=runs/cluster --page
bamboo cluster --config=quickstart --workdir=runs/cluster \
  --nodes=8 --zones=a,b,c --faults=configs/quickstart_faults.csv

With `--page` it prints the address of a page that shows the run, with buttons
that kill nodes. With `--random_kills=50` instead of `--faults`, 50 workers are
killed, and each is replaced. With `--trace=FILE --time_scale=60` nodes join and
die as in a trace, sixty times as fast. All processes end with the run. The same
command resumes from the last checkpoint. On Ctrl-C, SIGTERM or SIGUSR1 the step
is finished and saved first; a second Ctrl-C or SIGTERM ends all at once.
"""

import dataclasses
import os

from bamboo_jax import base
from bamboo_jax.base import logs
from bamboo_jax.cli import flagset
from bamboo_jax.cli.flagset import flag, part
from bamboo_jax.cluster import mirror
from bamboo_jax.config import Config
from bamboo_jax.faults import faults as faults_lib
from bamboo_jax.launch import cli
from bamboo_jax.local_cluster import cluster_run
from bamboo_jax.metrics import progress
from bamboo_jax.runtime import accelerator
from bamboo_jax.traces import readers, scale
from bamboo_jax.training.setup import sizes


@dataclasses.dataclass(frozen=True)
class ClusterFlags:
  """A cluster on this machine, and what happens to it."""

  config: Config = cli.config("default", "What to train.")
  workdir: str = cli.workdir()
  nodes: int | None = flag(
      None,
      "Number of nodes; those the config does not need are spares. With --trace, how many may be "
      "alive at once: the trace is scaled to that.",
      least=1,
  )
  zones: tuple[str, ...] = flag(("a",), "Zones, given out in turn; with regions as us/a,us/b,eu/a.")
  faults: str | None = flag(
      None, "CSV file of what happens to nodes: step,node,at,kind.", excludes="random_kills trace"
  )
  random_kills: int | None = flag(
      None,
      "Number of random workers to kill at random times, and replace.",
      excludes="trace",
      least=0,
  )
  kinds: tuple[str, ...] = flag(("kill",), "Kinds of fault to draw from.", needs="random_kills")
  seed: int = flag(0, "Decides on --random_kills.", needs="random_kills")
  trace: tuple[str, ...] = flag(
      (),
      "File of when nodes come and go: milliseconds,add|remove|notice,node. Several files are "
      "zones.",
  )
  time_scale: float = flag(
      1.0, "How many times as fast as recorded the trace is played.", above=0, needs="trace"
  )
  device_memory_fraction: float | None = cli.device_memory_fraction()
  metrics_port: int | None = flag(
      None,
      "Serve metrics for Prometheus: node n0 at this port, n1 at the next one, and so on.",
      least=1,
      most=65535,
  )
  figure_format: tuple[str, ...] = cli.figure_format()
  program_cache: str | None = cli.program_cache()
  page: cli.PageFlags = part(cli.PageFlags)


def main(flags: ClusterFlags) -> None:
  """Checks the flags, runs the cluster, and reports."""
  config, replay = flags.config, None
  change = cli.find_format_change(flags.figure_format, config)
  if flags.trace:
    trace = readers.read_traces(flags.trace)
    trace = scale.scale(trace, num_nodes=flags.nodes, time_scale=1 / flags.time_scale)
    replay = scale.plan_replay(trace)
    if not config.recovery.is_preemptible:
      replay = dataclasses.replace(replay, events=())
  with progress.waiting("importing JAX"):
    first_zones = cluster_run.find_first_zones(config, flags.nodes, flags.zones, replay)
  gpus, fraction = accelerator.find_gpus(os.environ), flags.device_memory_fraction
  accelerator.check_fraction(fraction, num_workers=len(first_zones), gpus=gpus)
  workdir, faults_file = mirror.take(flags.workdir), None
  arguments = [
      *flagset.to_argv(flags, "config", "workdir", "faults", "device_memory_fraction"),
      *(f"--config.{name}={value}" for name, value in change.items()),
      f"--program_cache={cli.find_program_cache(flags.program_cache)}",
  ]
  faults = sizes.read_faults(config, flags.faults)
  if flags.random_kills is not None and config.recovery.is_preemptible:
    faults = faults_lib.make_random_kills(
        flags.random_kills,
        seed=flags.seed,
        num_steps=config.num_steps,
        num_pipelines=config.pipeline.num_pipelines,
        num_stages=config.pipeline.num_stages,
        kinds=flags.kinds,
        zones=flags.zones,
    )
    faults_file = workdir / "random_kills.csv"
    arguments.append(f"--faults={faults_file}")
  logs.use("launcher")
  with base.lock_folder(workdir):
    run = cluster_run.ClusterRun(
        config=config,
        workdir=workdir,
        place=flags.workdir,
        arguments=arguments,
        first_zones=first_zones,
        zones=flags.zones,
        faults=faults,
        faults_file=faults_file,
        replay=replay,
        gpus=gpus,
        page_port=flags.page.port,
        metrics_port=flags.metrics_port,
    )
    run.run(cli.hearing)


if __name__ == "__main__":
  cli.run(main, if_interrupted=lambda: f"all processes have ended; {cli.explain_resume()}")
