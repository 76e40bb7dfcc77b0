r"""Predicts a run under a trace, runs it, and compares both.

bamboo validate --config=validate --trace=trace.csv \
  --time_scale=10 --workdir=runs/validate

First the layers are measured, and a cluster that loses and gets a node, unless
files of `bamboo profile` are given. A cluster runs under the trace, and the
simulator predicts it (docs/research/simulator.md): summary.csv, report.html.
"""

import dataclasses
import json
import pathlib
import sys

from bamboo_jax import base
from bamboo_jax.cli import flagset
from bamboo_jax.config import Config
from bamboo_jax.experiments import provenance, validation
from bamboo_jax.launch import cli, cluster as cluster_command, shared
from bamboo_jax.local_cluster import setup as setup_lib, trial
from bamboo_jax.metrics import plots
from bamboo_jax.sim import times as times_lib


@dataclasses.dataclass(frozen=True)
class ValidateFlags:
  """A run under a trace, and what was measured before."""

  config: Config = cli.config("default", "What to train.")
  workdir: str = shared.workdir("Where everything is written.")
  trace: tuple[str, ...] = flagset.flag(
      (), "As for `bamboo cluster`; the run is as long.", is_needed=True
  )
  time_scale: float = flagset.flag(1.0, "As for `bamboo cluster`.", above=0)
  nodes: int | None = flagset.flag(None, "Most nodes at once; scales the trace.", least=1)
  zones: tuple[str, ...] = flagset.flag(("a",), "Zones, given out in turn.")
  layers: str | None = flagset.flag(None, "File of `bamboo profile`.")
  cluster: str | None = flagset.flag(None, "The same with `--cluster`.")
  figure_format: tuple[str, ...] = shared.figure_format()
  program_cache: str | None = shared.program_cache()


_RUN = "config program_cache trace time_scale nodes zones figure_format".split()


def main(flags: ValidateFlags) -> None:
  """Measures, runs, predicts, compares."""
  config, workdir = flags.config, pathlib.Path(flags.workdir)
  flagset.refuse_keys(["num_steps"], "on a run as long as --trace")
  if flags.layers:
    flagset.refuse_keys(["plan.profile"], "beside --layers")
  plots.check()
  replay = cluster_command.read_replay(
      config, flags.trace, time_scale=flags.time_scale, nodes=flags.nodes
  )
  from bamboo_jax.experiments import run_policy  # Imports JAX.

  setup_lib.find_first_zones(config, flags.nodes, flags.zones, replay)
  layers = flags.layers or config.plan.profile
  run_policy.check(config, layers=layers, cluster=flags.cluster)
  trial.check_new(workdir / "run")
  with base.lock_folder(workdir):
    provenance.write(
        workdir,
        command=["bamboo", "validate", *sys.argv[1:]],
        config=json.dumps(config.to_json()),
        trace=flags.trace[0],
    )
    given_on = flagset.to_argv(flags, "config", "program_cache")
    layers = layers or trial.profile(workdir / "layers.json", given_on)
    config = config.changed({"plan.profile": layers})
    profile = f"--config.plan.profile={layers}"
    cluster = flags.cluster or trial.profile(
        workdir / "cluster.json", [*given_on, profile, "--cluster"]
    )
    rules, price = run_policy.make(config, flags.trace)
    run = trial.run(
        [*flagset.to_argv(flags, *_RUN), profile],
        workdir=workdir / "run",
        secs=replay.duration_ms / 1e3,
    )
    text = validation.report(
        workdir,
        run,
        replay,
        rules,
        measured=times_lib.read_measured(cluster),
        price=price,
        formats=flags.figure_format,
    )
    print(text)


if __name__ == "__main__":
  cli.run(main)
