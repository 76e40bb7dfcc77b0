r"""Trains once for each value of some fields of a config, and compares.

bamboo ablate --config=quickstart \
  --sweep=redundancy.mode=none,lazy,bubble,eager --repeats=3
bamboo ablate --config=quickstart --measure=losses --sweep=seed=0,1,2 \
  --sweep=optimizer.learning_rate=0.001,0.003 --workdir=runs/ablate_rates
bamboo ablate --config=paced --sweep=trace=monday.csv,tuesday.csv \
  --sweep=recovery.policy=bamboo,oobleck,recycle,varuna,checkpoint

bamboo ablate --config=bench_redundancy --sweep=redundancy.mode=none,lazy,eager \
  --interleave=5 --processes --config.num_steps=200
bamboo ablate --config=bench_peer --sweep=redundancy.mode=none --interleave=5 --processes \
  --rival="python -m bamboo_jax.benchmarks.torch_pipeline --config=bench_peer"

Several sweeps give all combinations; `faults` and `trace` are files. Runs are
those of `bamboo train`, with a trace of `bamboo cluster`, in another order in
each repeat. Writes after each run `runs.csv`, `means` with 95 % intervals, and
`differences` to the first setting, in pairs of equal seed, files and repeat, as
CSV, Markdown and LaTeX, and at the end `ablation.png`. There `step_ms` and
`tokens_per_sec` are medians within steps, and `samples_per_wall_sec` counts all
time after the first step. The same command again resumes.

With `--interleave=N` all runs are there at once, and all but one suspended: they take turns of N
steps in random order until the first has ended. `step_ms` is the median of a run's turns, and
`turns.csv` has all of them; ratios to the first setting are medians of pairs, with 95 % intervals
by bootstrap. `--rival` is a command that writes steps to WORKDIR/metrics.jsonl, as one more run.
"""

import dataclasses
import pathlib

from bamboo_jax.base import packaged
from bamboo_jax.benchmarks import ablation
from bamboo_jax.cli import flagset
from bamboo_jax.cli.flagset import flag, part
from bamboo_jax.config import Config
from bamboo_jax.experiments import sweep
from bamboo_jax.launch import cli
from bamboo_jax.metrics import plots, progress, table as table_lib


@dataclasses.dataclass(frozen=True)
class AblateFlags:
  """What runs, and how often."""

  config: Config = cli.config("quickstart", "What all runs share.")
  sweep: tuple[str, ...] = flag(
      (),
      "A field of the config, faults or trace, and its values: seed=0,1.",
      is_needed=True,
      is_repeated=True,
  )
  faults: str | None = flag(None, "As for `bamboo train`.", excludes="trace")
  trace: str | None = flag(None, "As for `bamboo cluster`, and these:")
  time_scale: float | None = flag(None, "Only with a trace.", above=0)
  nodes: int | None = flag(None, "Only with a trace.", least=1)
  repeats: int = flag(1, "Runs of each setting.", least=1)
  measure: str = flag(
      "times",
      "times: one run at a time; losses: several at once, without times.",
      choices=("times", "losses"),
  )
  processes: bool = flag(False, "Each run is a cluster, with a process for each node.")
  interleave: int | None = flag(
      None, "Runs take turns of so many steps.", least=1, excludes="faults trace"
  )
  rival: str | None = flag(
      None, "Another command that takes turns; gets --workdir.", needs="interleave"
  )
  workdir: str = flag("runs/ablate", "Where results go.")
  program_cache: str | None = cli.program_cache()
  figure_format: tuple[str, ...] = cli.figure_format()
  jobs: cli.JobFlags = part(cli.JobFlags)

  def read_sweeps(self) -> dict[str, tuple[str, ...]]:
    """Returns the values of each field; `ValueError` if one is not allowed."""
    sweeps = ablation.read_sweeps(self.sweep, ablation.FILES)
    flagset.refuse_keys(sweeps, "beside a --sweep of it")
    flagset.refuse({*ablation.FILES} & {*sweeps}, "beside a --sweep of it")
    used = {name for name in ablation.FILES if getattr(self, name)}
    if len(used := used | {*sweeps} & {*ablation.FILES}) > 1:
      raise ValueError(f"Give one of {' and '.join(sorted(used))}, not both.")
    if "trace" not in used:
      flagset.refuse(["time_scale", "nodes"], "without --trace")
    for file in (value for name in ablation.FILES for value in sweeps.get(name, ())):
      packaged.find_file(file).stat()
    read = {field: [*values.values()] for field, values in sweeps.items()}
    for policy in read.get("recovery.policy", [self.config.recovery.policy]):
      cli.refuse_overwritten(policy, read)
    return {field: tuple(values) for field, values in sweeps.items()}


def main(flags: AblateFlags) -> None:
  """Runs all trials and writes their summary."""
  sweeps = flags.read_sweeps()
  is_timed = flags.measure == "times"
  where = flags.jobs.read(flags.workdir, alone="without --measure=losses" * is_timed)
  if flags.interleave:
    flagset.refuse(["measure", "repeats", "shard", "merge"], "with --interleave")
    flagset.refuse([f for f in ablation.FILES if f in sweeps], "with --interleave")
  plots.check()
  workdir, config = pathlib.Path(flags.workdir), flags.config
  is_cluster = flags.processes or flags.trace or "trace" in sweeps
  program = f"bamboo_jax.launch.{'cluster' if is_cluster else 'train'}"
  passed = [*ablation.FILES, "config", "time_scale", "nodes", "program_cache"]
  arguments = tuple(flagset.to_argv(flags, *passed, *["figure_format"] * config.metrics.plots))
  facts = dict(module=program, arguments=arguments, workdir=flags.workdir, is_timed=is_timed)
  digest = lambda trial: ablation.digest_inputs(config, trial, (flags.faults, flags.trace))
  trials = [
      trial._replace(inputs=digest(trial))
      for trial in ablation.plan_trials(sweeps, repeats=flags.repeats, **facts)
  ]
  rows: list[ablation.Row] = []
  if flags.interleave:
    rows = ablation.take_turns(trials, sweeps, rival=flags.rival, steps=flags.interleave)
    tables = ablation.write_tables(workdir, rows, sweeps)
  else:
    show = lambda trial: {"trial": str(trial)}
    files = [flags.faults, flags.trace, *(v for f in ablation.FILES for v in sweeps.get(f, ()))]
    inputs = [*sweep.digest_code(config.to_dict()), str(config), *filter(None, files)]
    for row in sweep.run(ablation.run_trial, trials, where, inputs=inputs, describe=show):
      rows.append(row)
      tables = ablation.write_tables(workdir, rows, sweeps)
  with progress.waiting("figures are drawn"):
    figure = ablation.draw(rows, sweeps)
    plots.save_figure(figure, workdir / "ablation.png", flags.figure_format)
  where.clear()
  for table in tables:
    print(f"{table['title']}:\n{table_lib.to_markdown(table)}")
  print(f"Results are in {workdir}: runs.csv, means, differences and a figure")


if __name__ == "__main__":
  cli.run(main, if_interrupted=lambda: "the same command resumes")
