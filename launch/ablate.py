r"""Trains once for each value of some fields of a config, and compares.

python -m launch.ablate --config=configs/quickstart.py \
  --sweep=redundancy.mode=none,lazy,bubble,eager --repeats=3
python -m launch.ablate --config=configs/quickstart.py \
  --sweep=redundancy.mode=lazy,eager --sweep=redundancy.refresh=gradient,state \
  --faults=configs/quickstart_faults.csv --workdir=runs/ablate_deaths
python -m launch.ablate --config=configs/paced.py \
  --sweep=recovery.policy=bamboo,oobleck,recycle,varuna,checkpoint \
  --trace=trace.csv --workdir=runs/ablate_policies

Several sweeps give all combinations. Runs are those of `launch.train`, with
`--trace` of `launch.cluster`, one after the other; their order changes from
repeat to repeat. Writes `runs.csv` (one row per run), `means.csv` (one row per
setting, with 95 % intervals) and `ablation.png`. The same command again goes on
where it was.
"""

import pathlib
import sys

from absl import flags

from bamboo_jax.bench import ablation
from launch import cli
from launch import config_flag
from launch import shared_flags

_DEFAULT = "configs/quickstart.py"
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
flags.DEFINE_string("faults", None, "As for `launch.train`.")
_TRACE = flags.DEFINE_string(
    "trace", None, "As for `launch.cluster`, and so are these:"
)
flags.DEFINE_float("time_scale", None, "Only with --trace.")
flags.DEFINE_integer("nodes", None, "Only with --trace.")
shared_flags.define_program_cache()
_PASSED_ON = "config faults trace time_scale nodes program_cache".split()


def main() -> None:
  """Runs all trials and writes their summary."""
  sweeps = ablation.parse_sweeps(_SWEEP.value)
  for field, values in sweeps.items():
    for value in values:
      config_flag.check_arguments([f"--config.{field}={value}"])
  workdir = pathlib.Path(_WORKDIR.value)
  trials = ablation.plan_trials(sweeps, repeats=_REPEATS.value)
  program = "launch.cluster" if _TRACE.value else "launch.train"
  command = [sys.executable, "-m", program]
  command += cli.find_arguments(_PASSED_ON, sys.argv[1:])
  if not _CONFIG.present:
    command.append(f"--config={_DEFAULT}")
  rows = ablation.run_trials(trials, command, workdir=workdir)
  for mean in ablation.write(workdir, rows, sweeps):
    print(ablation.render(mean))
  print(f"Results are in {workdir}: runs.csv, means.csv, ablation.png")


if __name__ == "__main__":
  cli.run(main, if_interrupted=lambda: "the same command goes on where it was")
