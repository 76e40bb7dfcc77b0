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

from bamboo_jax.cli import flagset
from bamboo_jax.cluster import mirror
from bamboo_jax.config import Config
from bamboo_jax.launch import cli
from bamboo_jax.local_cluster import cluster_run, setup as setup_lib
from bamboo_jax.metrics import progress
from bamboo_jax.runtime import accelerator
from bamboo_jax.traces import readers, replay as replay_lib
from bamboo_jax.training.setup import sizes


@dataclasses.dataclass(frozen=True)
class ClusterFlags:
  """A cluster on this machine, and what happens to it."""

  config: Config = cli.config("default", "What to train.")
  workdir: str = cli.workdir()
  nodes: int | None = flagset.flag(
      None,
      "Number of nodes; those the config does not need are spares. With --trace, how many may be "
      "alive at once: the trace is scaled to that.",
      least=1,
  )
  zones: tuple[str, ...] = flagset.flag(("a",), "Zones, given out in turn.")
  faults: str | None = flagset.flag(
      None, "CSV file of what happens to nodes: step,node,at,kind.", excludes="random_kills trace"
  )
  random_kills: int | None = flagset.flag(
      None,
      "Number of random workers to kill at random times, and replace.",
      excludes="trace",
      least=0,
  )
  kinds: tuple[str, ...] = flagset.flag(
      ("kill",), "Kinds of fault to draw from.", needs="random_kills"
  )
  seed: int = flagset.flag(0, "Decides on --random_kills.", needs="random_kills")
  trace: tuple[str, ...] = flagset.flag(
      (),
      "File of when nodes come and go: milliseconds,add|remove|notice,node. Several files are "
      "zones.",
  )
  time_scale: float = flagset.flag(
      1.0, "How many times as fast as recorded the trace is played.", above=0, needs="trace"
  )
  device_memory_fraction: float | None = cli.device_memory_fraction()
  metrics_port: int | None = flagset.flag(
      None,
      "Serve metrics for Prometheus: node n0 at this port, n1 at the next one, and so on.",
      least=1,
      most=65535,
  )
  figure_format: tuple[str, ...] = cli.figure_format()
  program_cache: str | None = cli.program_cache()
  page: cli.PageFlags = flagset.part(cli.PageFlags)


def read_replay(
    config: Config, trace: tuple[str, ...], *, time_scale: float, nodes: int | None
) -> replay_lib.Replay:
  """Returns the replay of a trace, without events if nodes are not preemptible."""
  replay = replay_lib.plan_replay(
      readers.read_traces(trace), time_scale=time_scale, num_nodes=nodes
  )
  return replay if config.recovery.is_preemptible else dataclasses.replace(replay, events=())


def main(flags: ClusterFlags) -> None:
  """Checks the flags, runs the cluster, and reports."""
  config, replay = flags.config, None
  change = cli.find_format_change(flags.figure_format, config)
  if flags.trace:
    replay = read_replay(config, flags.trace, time_scale=flags.time_scale, nodes=flags.nodes)
  with progress.waiting("importing JAX"):
    first_zones = setup_lib.find_first_zones(config, flags.nodes, flags.zones, replay)
  gpus, fraction = accelerator.find_gpus(os.environ), flags.device_memory_fraction
  accelerator.check_fraction(fraction, num_workers=len(first_zones), gpus=gpus)
  setup = setup_lib.Setup(
      workdir=mirror.take(flags.workdir),
      place=flags.workdir,
      arguments=[
          *flagset.to_argv(flags, "config", "workdir", "faults", "device_memory_fraction"),
          *(f"--config.{name}={value}" for name, value in change.items()),
          f"--program_cache={cli.find_program_cache(flags.program_cache)}",
      ],
      first_zones=first_zones,
      zones=flags.zones,
      faults=sizes.read_faults(config, flags.faults),
      replay=replay,
      gpus=gpus,
      page_port=flags.page.port,
      metrics_port=flags.metrics_port,
  )
  if flags.random_kills is not None:
    setup = setup_lib.with_random_kills(
        setup, config, flags.random_kills, seed=flags.seed, kinds=flags.kinds
    )
  cluster_run.run(setup, config, hearing=cli.hearing)


if __name__ == "__main__":
  cli.run(main, if_interrupted=lambda: f"all processes have ended; {cli.explain_resume()}")
