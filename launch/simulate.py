r"""Simulates training on preemptible nodes: policies on a trace, and what they cost.

bamboo simulate --config=gpt2 --config.plan.machine=p3.2xlarge \
  --policies=bamboo,oobleck,varuna --trace=ec2 --workdir=runs/sim
bamboo simulate --config=sim/compare --sweep=study.durations.restart_secs=10,40,300 \
  --workdir=runs/restarts
bamboo simulate --beside=runs/cluster --workdir=runs/beside
bamboo simulate --table=oobleck --workdir=runs/oobleck

The config is that of a run, and a policy changes some of its options; `own` is the config
as it is, and `bamboo+grid` one policy after another. Without `--trace` preemptions are
generated, by config.study.trace. Nothing runs on a device. The same command resumes.

With `--beside` a run of `bamboo cluster` is played again, with its config, its times and
its nodes, and both are compared. With `--table` the rules are those of a paper's artifact:
`bamboo`, `bamboo:VGG`, `oobleck`, `oobleck:GPT-2`. docs/research/simulator.md explains
what is modelled.
"""

import dataclasses
import functools
import json
import pathlib
import sys

from bamboo_jax import base
from bamboo_jax.benchmarks import ablation
from bamboo_jax.cli import flagset
from bamboo_jax.cli.flagset import flag, part
from bamboo_jax.config import Config
from bamboo_jax.experiments import beside, compare, sweep
from bamboo_jax.launch import cli
from bamboo_jax.recovery import policies as policies_lib
from bamboo_jax.reproductions.bamboo import table as bamboo_table
from bamboo_jax.reproductions.oobleck import artifact, evaluation as oobleck_table
from bamboo_jax.traces import readers

_TABLES = {"bamboo": bamboo_table.run, "oobleck": oobleck_table.run}
_BY_DEFAULT = ("own", "on_demand", "checkpoint", "varuna", "bamboo", "oobleck", "full")
_TRACES = artifact.read_traces()
_OF_POLICIES = ("policies", "trace", "time_scale", "nodes", "sweep")


@dataclasses.dataclass(frozen=True)
class SimulateFlags:
  """What to simulate."""

  config: Config = cli.config("sim/compare", "What to train.")
  workdir: str = flag(None, "Where everything is written.", is_needed=True)
  policies: tuple[str, ...] = flag(
      _BY_DEFAULT,
      f"What follows preemptions: {', '.join(policies_lib.POLICIES)}, a plugin's, or "
      "file.py:function; A+B is B after A.",
  )
  trace: tuple[str, ...] = flag(
      (),
      "Files of preemptions, as for `bamboo cluster`; or one that is published: "
      f"{', '.join(_TRACES)}.",
  )
  time_scale: float = flag(1.0, "How many times as fast as recorded the trace is played.", above=0)
  nodes: int | None = flag(None, "Most nodes at once; scales the trace.", least=1, needs="trace")
  sweep: tuple[str, ...] = flag(
      (),
      "One option and its values, as for `bamboo ablate`: study.trace.hours=12,24.",
      is_repeated=True,
  )
  seeds: int = flag(5, "Generated traces for each value, or runs of --table.", least=1)
  beside: str | None = flag(None, "Workdir of a run to compare with.", excludes="table")
  table: str | None = flag(None, "Published results to repeat.")
  figure_format: tuple[str, ...] = cli.figure_format()
  jobs: cli.JobFlags = part(cli.JobFlags)


def main(flags: SimulateFlags) -> None:
  """Runs the simulation that the flags select."""
  config, workdir = flags.config, pathlib.Path(flags.workdir)
  cli.find_format_change(flags.figure_format, config)
  other = "beside" if flags.beside else "table" if flags.table else None
  if other:
    flagset.refuse(["config", *_OF_POLICIES], f"with --{other}")
    flagset.refuse_keys([name for name in vars(config)], f"with --{other}")
  if (workdir / "metrics.jsonl").exists():
    raise ValueError(
        f"--workdir={workdir} has a run that trained, whose report.html this would replace: name "
        "another."
    )
  where, formats = flags.jobs.read(flags.workdir), flags.figure_format
  traces: tuple[str, ...] = ()
  if flags.beside:
    flagset.refuse(["seeds", "num_processes", "dask", "shard", "merge"], "with --beside")
    print(beside.run(pathlib.Path(flags.beside), workdir=workdir, formats=formats))
  elif flags.table:
    name, _, model = flags.table.partition(":")
    if name not in _TABLES:
      raise ValueError(base.suggest(name, _TABLES, what="table"))
    if name == "oobleck":
      flagset.refuse(["seeds"], "with --table=oobleck, whose traces are recorded")
    given = {"num_seeds": flags.seeds} if flagset.is_given("seeds") else {}
    _TABLES[name](model or None, workdir=workdir, formats=formats, where=where, **given)
  else:
    traces = _compare(flags, workdir, where)
  # Last, as simulations check their options.
  sweep.write_provenance(
      workdir,
      command=["bamboo", "simulate", *sys.argv[1:]],
      config=json.dumps({} if other else config.to_json()),
      traces=traces,
  )
  where.clear()


def _compare(flags: SimulateFlags, workdir: pathlib.Path, where: sweep.Where) -> tuple[str, ...]:
  """Compares policies; returns the files of the trace."""
  if flags.trace:
    flagset.refuse(["seeds"], "with --trace, which is one trace")
    flagset.refuse_keys(["study.trace", "seed"], "with --trace, which has the preemptions")
  else:
    flagset.refuse(["time_scale"], "without --trace")
  if not flags.sweep:
    flagset.refuse(["seeds"], "without --sweep")
  swept, sweeps = compare.Sweep(), ablation.read_sweeps(flags.sweep)
  if len(sweeps) > 1:
    raise ValueError(f"Give one --sweep, got those of {' and '.join(sweeps)}.")
  if flags.config.study.table.file is None and "study.table.file" not in sweeps:
    when = "without config.study.table.file"
    flagset.refuse_keys(["study.table"], when)
    flagset.refuse_texts([f"--sweep={f}" for f in sweeps if f.startswith("study.table.")], when)
  for field, values in sweeps.items():
    if field == "recovery.policy":
      raise ValueError(f"--sweep={field}: give the policies as --policies=A,B.")
    swept = compare.Sweep(field, tuple(values.values()), flags.seeds)
  for option in ("study.table.file", "plan.profile"):
    costs = functools.reduce(getattr, option.split("."), flags.config)
    if costs is not None and swept.field != option:
      when = f"with config.{option}={costs!r}, which has the costs"
      flagset.refuse_keys(["model"], when)
      if swept.values and swept.field.startswith("model."):
        flagset.refuse_texts([f"--sweep={swept.field}"], when)
  names, given = flags.policies, ",".join(flags.policies)
  if len({*names}) < len(names):
    raise ValueError(f"--policies={given} must name each policy once.")
  keys = set.intersection(*({*policies_lib.find(name)} for name in names))
  keys -= {"redundancy.mode"}  # The config may say how policies have replicas.
  when = f"with --policies={given}, which {'set' if names[1:] else 'sets'} it"
  flagset.refuse_keys(keys, when)
  if swept.values and swept.field in keys:
    flagset.refuse_texts([f"--sweep={swept.field}"], when)
  traces = list[str]()
  for name in flags.trace:
    if not (pathlib.Path(name).suffix or pathlib.Path(name).is_file()):
      if name not in _TRACES:
        raise ValueError(base.suggest(name, _TRACES, what="trace"))
      workdir.mkdir(parents=True, exist_ok=True)
      content, name = readers.render_events(_TRACES[name]), str(workdir / f"{name}.csv")
      base.write_atomically(name, content)
    traces.append(name)
  compare.run(
      flags.config,
      flags.policies,
      workdir=workdir,
      preemptions=compare.Preemptions(tuple(traces), flags.time_scale, flags.nodes),
      sweep=swept,
      formats=flags.figure_format,
      where=where,
  )
  return tuple(traces)


if __name__ == "__main__":
  cli.run(main, is_study=True)
