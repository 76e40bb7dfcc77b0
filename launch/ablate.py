r"""Trains once for each value of some fields of a config, and compares.

python -m launch.ablate --config=configs/quickstart.py \
  --sweep=redundancy.mode=none,lazy,bubble,eager --repeats=3
python -m launch.ablate --config=configs/quickstart.py \
  --sweep=redundancy.mode=lazy,eager --sweep=redundancy.refresh=gradient,state \
  --faults=configs/quickstart_faults.csv --workdir=runs/ablate_deaths

Several sweeps give all combinations. Runs are those of `launch.train`, one
after the other; their order changes from repeat to repeat. Writes `runs.csv`
(one row per run), `means.csv` (one row per setting, with 95 % intervals) and
`ablation.png`. The same command again goes on where it was.
"""

from collections.abc import Sequence
import pathlib
import subprocess
import sys

from absl import flags
from ml_collections import config_flags
import tqdm

from launch import cli
from launch import config_flag
from launch.ablation import results
from launch.ablation import sweep

_CONFIG = config_flag.define("configs/quickstart.py", "What all runs share.")
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
_FAULTS = flags.DEFINE_string("faults", None, "As for `launch.train`.")


def main(argv: Sequence[str]) -> None:
  """Runs all trials and writes what they came to."""
  cli.check_no_arguments(argv)
  sweeps = {}
  for text in _SWEEP.value:
    field, values = sweep.parse_sweep(text)
    if field in sweeps:
      raise ValueError(f"--sweep names {field} twice.")
    for value in values:
      config_flag.check_arguments([f"--config.{field}={value}"])
    sweeps[field] = values
  workdir = pathlib.Path(_WORKDIR.value)
  trials = sweep.plan_trials(sweeps, repeats=_REPEATS.value)
  rows = []
  bar = tqdm.tqdm(trials, unit="run", disable=not sys.stderr.isatty())
  for count, trial in enumerate(bar, 1):
    _train(trial, workdir / trial.folder)
    rows.append(results.read_row(workdir / trial.folder, trial))
    if bar.disable:
      print(
          f"run={count}/{len(trials)} {sweep.describe(trial.setting)} "
          f"repeat={trial.repeat} step_ms={rows[-1]['step_ms'] or 0:.1f}",
          flush=True,
      )
  rows.sort(key=lambda row: [sweeps[f].index(row[f]) for f in sweeps])
  for mean in results.write(workdir, rows, list(sweeps)):
    print(_render(mean))
  print(f"Results are in {workdir}: runs.csv, means.csv, ablation.png")


def _train(trial: sweep.Trial, workdir: pathlib.Path) -> None:
  """Runs `launch.train`; `ValueError` says why it failed."""
  shared = flags.FLAGS["config"]
  overrides = config_flags.get_override_values(shared) | dict(trial.setting)
  command = [sys.executable, "-m", "launch.train", f"--workdir={workdir}"]
  command.append(f"--config={config_flags.get_config_filename(shared)}")
  command += [f"--config.{field}={value}" for field, value in overrides.items()]
  if _FAULTS.value:
    command.append(f"--faults={_FAULTS.value}")
  done = subprocess.run(command, capture_output=True, text=True, check=False)
  if done.returncode:
    lines = done.stderr.strip().splitlines() or ["no message"]
    raise ValueError(
        f"{sweep.describe(trial.setting)}, repeat {trial.repeat}: "
        f"{lines[-1].removeprefix('error: ')}"
    )


def _render(mean: results.Row) -> str:
  """Returns `name=value` pairs of what is known of a setting."""
  shown = []
  for name, value in mean.items():
    if value is None or name.endswith("_ci95"):
      continue
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    interval = mean.get(f"{name}_ci95")
    if interval is not None:
      text += f"±{interval:.2g}"
    shown.append(f"{name}={text}")
  return " ".join(shown)


if __name__ == "__main__":
  cli.run(main, if_interrupted="the same command goes on where it was")
