r"""Predicts a run under a trace, runs it, and compares both.

bamboo validate --config=validate --trace=trace.csv \
  --time_scale=10 --workdir=runs/validate

First the layers are measured, and a cluster that loses and gets a node, unless
files of `bamboo profile` are given. A cluster runs under the trace, and the
simulator predicts it (docs/research/simulator.md): summary.csv, report.html.
"""

import json
import pathlib
import sys

from absl import flags

from bamboo_jax import base
from bamboo_jax.experiments import provenance, validation
from bamboo_jax.launch import cli, cluster_checks, cluster_flags as given
from bamboo_jax.local_cluster import setup as setup_lib, trial
from bamboo_jax.metrics import plots
from bamboo_jax.sim import times as times_lib

flags.adopt_module_key_flags(given)
_LAYERS = flags.DEFINE_string("layers", None, "File of `bamboo profile`.")
_CLUSTER = flags.DEFINE_string("cluster", None, "The same with `--cluster`.")
_RUN = "config program_cache trace time_scale nodes zones figure_format".split()


def main() -> None:
  """Measures, runs, predicts, compares."""
  argv, config, zones = sys.argv[1:], given.CONFIG.value, given.ZONES.value
  workdir = pathlib.Path(given.WORKDIR.value)
  cluster_checks.check_for_trace(argv, layers=_LAYERS.value)
  plots.check()
  replay = given.read_replay()
  from bamboo_jax.experiments import run_policy  # Imports JAX.

  setup_lib.find_first_zones(config, given.NODES.value, zones, replay)
  layers = _LAYERS.value or config.plan.profile
  run_policy.check(config, layers=layers, cluster=_CLUSTER.value)
  trial.check_new(workdir / "run")
  with base.lock_folder(workdir):
    provenance.write(
        workdir,
        command=["bamboo", "validate", *argv],
        config=json.dumps(config.to_json()),
        trace=given.TRACE.value[0],
    )
    given_on = cli.find_arguments(("config", "program_cache"), argv)
    layers = layers or trial.profile(workdir / "layers.json", given_on)
    config = config.changed({"plan.profile": layers})
    given_on.append(f"--config.plan.profile={layers}")
    cluster = _CLUSTER.value or trial.profile(workdir / "cluster.json", [*given_on, "--cluster"])
    rules, price = run_policy.make(config, given.TRACE.value)
    run = trial.run(
        [*cli.find_arguments(_RUN, argv), given_on[-1]],
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
        formats=given.FIGURE_FORMAT.value,
    )
    print(text)


if __name__ == "__main__":
  cli.run(main)
