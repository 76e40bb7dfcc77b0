r"""Trains once for each value of some fields of a config, and compares.

bamboo ablate --config=quickstart \
  --sweep=redundancy.mode=none,lazy,bubble,eager --repeats=3
bamboo ablate --config=quickstart \
  --sweep=redundancy.mode=lazy,eager --sweep=redundancy.refresh=gradient,state \
  --faults=configs/quickstart_faults.csv --workdir=runs/ablate_deaths
bamboo ablate --config=paced \
  --sweep=recovery.policy=bamboo,oobleck,recycle,varuna,checkpoint \
  --trace=trace.csv --workdir=runs/ablate_policies

Several sweeps give all combinations. Runs are those of `bamboo train`, with
`--trace` of `bamboo cluster`, one after the other; their order changes from
repeat to repeat. Writes `runs.csv` (one row per run), `means.csv` (one row per
setting, with 95 % intervals if it has several runs) and `ablation.png`; in them
`step_ms` and `tokens_per_sec` are medians within steps, `samples_per_wall_sec`
counts all time after the first step. The same command again resumes.
"""

import pathlib
import sys

from absl import flags

from bamboo_jax.benchmarks import ablation
from bamboo_jax.launch import cli
from bamboo_jax.launch import config_flag
from bamboo_jax.launch import figure_flags
from bamboo_jax.launch import flag_checks
from bamboo_jax.launch import shared_flags
from bamboo_jax.metrics import plots

_DEFAULT = "quickstart"
_CONFIG = config_flag.define(_DEFAULT, "What all runs share.")
_SWEEP = flags.DEFINE_multi_string(
    "sweep",
    None,
    "A field of the config and its values: redundancy.mode=none,lazy.",
    required=True,
)
_REPEATS = flags.DEFINE_integer(
    "repeats", 1, "Runs of each setting.", lower_bound=1
)
_WORKDIR = flags.DEFINE_string("workdir", "runs/ablate", "Where results go.")
_FAULTS = flags.DEFINE_string("faults", None, "As for `bamboo train`.")
_TRACE = flags.DEFINE_string(
    "trace", None, "As for `bamboo cluster`, and so are these:"
)
_SCALE = flags.DEFINE_float("time_scale", None, "Only with --trace.")
_NODES = flags.DEFINE_integer("nodes", None, "Only with --trace.")
shared_flags.define_program_cache()
_FORMAT = figure_flags.define()
_SHARED = "config faults trace time_scale nodes program_cache figure_format"


def main() -> None:
  """Runs all trials and writes their summary."""
  flag_checks.check_one_of(_FAULTS, _TRACE)
  flag_checks.check_needs([_SCALE, _NODES], _TRACE)
  sweeps = ablation.parse_sweeps(_SWEEP.value)
  flag_checks.refuse_keys(sys.argv[1:], sweeps, "beside a --sweep of it")
  for field, values in sweeps.items():
    for value in values:
      config_flag.check_arguments([f"--config.{field}={value}"])
  plots.check()
  workdir = pathlib.Path(_WORKDIR.value)
  trials = ablation.plan_trials(sweeps, repeats=_REPEATS.value)
  program = "cluster" if _TRACE.value else "train"
  command = [sys.executable, "-m", f"bamboo_jax.launch.{program}"]
  command += cli.find_arguments(_SHARED.split(), sys.argv[1:])
  if not _CONFIG.present:
    command.append(f"--config={_DEFAULT}")
  rows = ablation.run_trials(trials, command, workdir=workdir)
  for mean in ablation.write(workdir, rows, sweeps, formats=_FORMAT.value):
    print(ablation.render(mean))
  print(f"Results are in {workdir}: runs.csv, means.csv and a figure")


if __name__ == "__main__":
  cli.run(main, if_interrupted=lambda: "the same command resumes")
