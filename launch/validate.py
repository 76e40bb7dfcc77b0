r"""Predicts a run under a trace, runs it, and sets both beside each other.

python -m launch.validate --config=configs/quickstart.py --trace=trace.csv \
  --time_scale=10 --workdir=runs/validate

First the layers are measured, and a cluster that loses and gets a node, as by
`launch.profile`; then a cluster runs under the trace, to its end, and the
simulator predicts what it did. The workdir then has `summary.csv` and
`report.html`, with the course of both; see docs/simulator.md.
"""

from collections.abc import Callable
import json
import pathlib
import shlex
import subprocess
import sys

from absl import flags
from ml_collections import config_dict

from bamboo_jax import base
from bamboo_jax.accounting import prices as prices_lib
from bamboo_jax.experiments import provenance
from bamboo_jax.experiments import validation
from bamboo_jax.local_cluster import setup as setup_lib
from bamboo_jax.local_cluster import trial
from bamboo_jax.plan import cost_model
from bamboo_jax.sim import decisions
from bamboo_jax.sim import loop
from bamboo_jax.sim import measured as measured_lib
from bamboo_jax.sim import speed as speed_lib
from bamboo_jax.sim import times as times_lib
from bamboo_jax.traces import readers
from launch import cli
from launch import cluster as given

flags.adopt_module_key_flags(given)
_LAYERS = flags.DEFINE_string(
    "layers", None, "File of `launch.profile`; else it is made."
)
_CLUSTER = flags.DEFINE_string(
    "cluster", None, "File of `launch.profile --cluster`; else it is made."
)
_RUN = ("config", "program_cache", "trace", "time_scale", "nodes", "zones")


def main() -> None:
  """Measures, runs, predicts, compares."""
  config, workdir = given.CONFIG.value, pathlib.Path(given.WORKDIR.value)
  zones = given.ZONES.value
  setup_lib.check(config, zones)
  if not given.TRACE.value:
    raise ValueError("There must be a --trace.")
  replay = given.read_replay()
  setup_lib.find_first_zones(config, given.NODES.value, zones, replay)
  _check_given(config)
  workdir.mkdir(parents=True, exist_ok=True)
  with base.lock_folder(workdir):
    provenance.write(
        workdir,
        command=["python", "-m", "launch.validate", *sys.argv[1:]],
        config=json.loads(config.to_json_best_effort()),
        trace=given.TRACE.value[0],
    )
    layers = _LAYERS.value or _profile(workdir / "layers.json")
    config.plan.profile = layers
    use_layers = f"--config.plan.profile={layers}"
    cluster = _CLUSTER.value or _profile(
        workdir / "cluster.json", use_layers, "--cluster"
    )
    measured = measured_lib.read(cluster)
    make_policy, price = _find_rules(config)
    price = loop.price_on(readers.read_traces(given.TRACE.value), price)
    run = trial.run(
        [*cli.find_arguments(_RUN, sys.argv[1:]), use_layers],
        workdir=workdir / "run",
        secs=replay.duration_ms / 1e3,
    )
    text = validation.report(
        workdir, run, replay, make_policy, measured=measured, price=price
    )
    print(text)


def _check_given(config: config_dict.ConfigDict) -> None:
  """Reads what would be needed only after minutes of measuring."""
  from bamboo_jax.train.record import meter

  meter.find_price(config)
  if path := _LAYERS.value:
    cost_model.from_json(pathlib.Path(path).read_text(), source=path)
  if path := _CLUSTER.value:
    measured_lib.read(path)


def _profile(path: pathlib.Path, *arguments: str) -> str:
  shared = cli.find_arguments(("config", "program_cache"), sys.argv[1:])
  command = [sys.executable, "-m", "launch.profile", *shared, *arguments]
  status = subprocess.run([*command, f"--out={path}"]).returncode
  if status:
    raise ValueError(
        f"Nothing was measured: {shlex.join(command)} ended with status "
        f"{status}; what it said is above."
    )
  return str(path)


def _find_rules(
    config: config_dict.ConfigDict,
) -> tuple[Callable[[measured_lib.Measured], loop.Policy], prices_lib.Price]:
  """Returns what makes the policy of a run from measured times, and a price."""
  from bamboo_jax.train.record import meter
  from bamboo_jax.train.setup import build
  from bamboo_jax.train.setup import build_recovery

  profile = build.make_profile(config, build.make_task(config))
  templates = build_recovery.make_templates(config, profile, is_cluster=True)
  plan = build.make_plan(
      config,
      profile,
      is_cluster=True,
      num_stages=templates and templates.min_nodes,
  )
  rules = build_recovery.make_rules(config, plan, templates)
  speed = speed_lib.ProfileSpeed(
      profile,
      num_microbatches=plan.batch.total_microbatches,
      microbatch_size=plan.batch.microbatch_size,
      redundant=build.make_redundancy(config),
      reroute=config.recovery.reroute,
  )
  whole = rules.planner.fresh(range(plan.num_pipelines * plan.num_stages), {})
  predicted_secs = speed.step(whole, drops=False).secs
  print(f"step_ms_from_layers={1e3 * predicted_secs:.1f}")

  def make(measured: measured_lib.Measured) -> loop.Policy:
    durations = measured.durations
    times = times_lib.Times(
        measured_lib.MeasuredSpeed(speed, measured, whole=whole),
        durations,
        drops=rules.ladder.drop,
        profile=None,  # Copies are in the durations.
    )
    decider = decisions.Decider(rules.ladder, rules.planner, times)
    market = config.cost.market
    return loop.Policy("predicted", decider, durations, market=market)

  return make, meter.find_price(config)


if __name__ == "__main__":
  cli.run(main)
