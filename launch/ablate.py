r"""Trains once for each value of some fields of a config, and compares.

bamboo ablate --config=quickstart \
  --sweep=redundancy.mode=none,lazy,bubble,eager --repeats=3
bamboo ablate --config=quickstart --measure=losses --sweep=seed=0,1,2 \
  --sweep=optimizer.learning_rate=0.001,0.003 --workdir=runs/ablate_rates
bamboo ablate --config=paced --sweep=trace=monday.csv,tuesday.csv \
  --sweep=recovery.policy=bamboo,oobleck,recycle,varuna,checkpoint

Several sweeps give all combinations; `faults` and `trace` are files. Runs are
those of `bamboo train`, with a trace of `bamboo cluster`, in another order in
each repeat. Writes after each run `runs.csv`, `means` with 95 % intervals, and
`differences` to the first setting, in pairs of equal seed, files and repeat, as
CSV, Markdown and LaTeX, and at the end `ablation.png`. There `step_ms` and
`tokens_per_sec` are medians within steps, and `samples_per_wall_sec` counts all
time after the first step. The same command again resumes.
"""

import pathlib

from absl import flags

from bamboo_jax.benchmarks import ablation, ablation_report
from bamboo_jax.experiments import sweep
from bamboo_jax.launch import (
    ablate_flags,
    cli,
    config_flag,
    figure_flags,
    shared_flags,
    sweep_flags,
)
from bamboo_jax.metrics import plots, progress

_CONFIG = config_flag.define(ablate_flags.DEFAULT, "What all runs share.")
_REPEATS = flags.DEFINE_integer("repeats", 1, "Runs of each setting.", lower_bound=1)
_MEASURE = flags.DEFINE_enum(
    "measure",
    "times",
    ["times", "losses"],
    "times: one run at a time; losses: several at once, without times.",
)
_WORKDIR = flags.DEFINE_string("workdir", "runs/ablate", "Where results go.")
flags.adopt_module_key_flags(ablate_flags)
flags.adopt_module_key_flags(sweep_flags)
shared_flags.define_program_cache()
_FORMAT = figure_flags.define()


@sweep_flags.ending
def main() -> None:
  """Runs all trials and writes their summary."""
  sweeps = ablate_flags.read_sweeps()
  is_timed = _MEASURE.value == "times"
  alone = "without --measure=losses" * is_timed
  where = sweep_flags.read(_WORKDIR.value, alone=alone)
  plots.check()
  workdir = pathlib.Path(_WORKDIR.value)
  module, arguments, inputs = ablate_flags.find_command(sweeps)
  jobs = [
      ablation.Job(trial, module, arguments, _WORKDIR.value, is_timed)
      for trial in ablation.plan_trials(sweeps, repeats=_REPEATS.value)
  ]
  show = lambda job: {"trial": str(job)}
  done = sweep.run(ablation.run_job, jobs, where, inputs=inputs, describe=show)
  rows = []
  for row in done:
    rows.append(row)
    table = ablation_report.write_tables(workdir, rows, sweeps)
  with progress.waiting("figures are drawn"):
    figure = ablation_report.draw(rows, sweeps)
    plots.save_figure(figure, workdir / "ablation.png", _FORMAT.value)
  where.clear()
  print(*map(ablation_report.render, table), sep="\n")
  print(f"Results are in {workdir}: runs.csv, means, differences and a figure")


if __name__ == "__main__":
  cli.run(main, if_interrupted=lambda: "the same command resumes")
