r"""Kills nodes of your training at every possible point, and compares the bits.

bamboo verify --config=my_config.py --every=5
bamboo verify --sweep=pipeline.num_stages=2,3,4 --sweep=redundancy.mode=eager,lazy
bamboo verify --kinds=pair,second,neighbours,two_stages --num_cases=100
bamboo verify --kinds=storm --num_events=100 --config.redundancy.spares=1 \
  --config.pipeline.num_shares=12 --config.pipeline.layout=templates
bamboo verify --layouts=200 --seed=1 --num_events=8
bamboo verify --layouts=20 --processes --num_events=6

Places times layouts times kinds of faults: a layout is the config, or one of each combination of
the values of `--sweep`, or one of `--layouts=N` random ones, which share the global batch: sizes,
partition, schedule, links and all settings of redundancy and recovery are drawn; a layout depends
only on its number, from `--seed` on. By default every node dies before every instruction of its
row and before every phase of a step; in random layouts, `--kinds=mixed`.

All cases must end with the losses and the state of a run without faults, to the bit, on any rung.
Prints a line for each layout and kind: the hash of the state, how many cases came to it, and the
rungs taken; a line for each case that did not, with its faults in the format of a fault file; and
the command that repeats it. The exit code is 1 if there is one.

With `--processes` each layout is a run of `bamboo cluster` with `--num_events` random kills,
compared with a run of `bamboo train`.
"""

import collections
import dataclasses
import itertools
import sys

from bamboo_jax import base
from bamboo_jax.benchmarks import ablation
from bamboo_jax.cli import flagset
from bamboo_jax.cli.flagset import flag, part
from bamboo_jax.config import Config
from bamboo_jax.experiments import sweep as sweep_lib
from bamboo_jax.faults import faults as faults_lib
from bamboo_jax.launch import cli


@dataclasses.dataclass(frozen=True)
class VerifyFlags:
  """What dies, and where."""

  config: Config = cli.config("sweep_faults", "What to train.")
  sweep: tuple[str, ...] = flag(
      (),
      "An option of the config and its values, as for `bamboo ablate`: redundancy.mode=lazy,eager.",
      is_repeated=True,
      excludes="layouts",
  )
  layouts: int | None = flag(None, "Random layouts.", least=1)
  kinds: tuple[str, ...] = flag(
      (),
      "Faults: single, one node dies; pair, two that leave a copy of all stages; neighbours, "
      "two that do not; second, one more in the recovery; two_stages, in the next step the one "
      "that runs the lost stage too; storm, --num_events deaths and joins, in which rows may "
      "compile nothing; mixed, --num_events deaths, notices, restarts and joins. By default "
      "single, of random layouts mixed.",
      excludes="faults",
  )
  every: int = flag(1, "Single deaths: before every n-th instruction.", least=1)
  num_cases: int = flag(1, "Random cases of each other kind.", least=1)
  num_events: int = flag(4, "Faults of a storm, or of a mixed case.", least=0)
  seed: int = flag(0, "Of random cases; number of the first layout.")
  faults: str | None = flag(None, "The only case: lines of a fault file, with semicolons between.")
  processes: bool = flag(
      False, "Each layout is a cluster of processes.", needs="layouts", excludes="kinds faults"
  )
  program_cache: str | None = cli.program_cache()
  workdir: str | None = flag(None, "Where results are kept.")
  jobs: cli.JobFlags = part(cli.JobFlags)


def main(flags: VerifyFlags) -> None:
  """Runs all cases; prints the outcome and exits."""
  from bamboo_jax.verify import table  # Imports JAX.

  swept = ablation.read_sweeps(flags.sweep)
  flagset.refuse_keys(swept, "beside a --sweep of it")
  for kind in flags.kinds:
    if kind not in table.KINDS:
      raise ValueError(base.suggest(kind, table.KINDS, what="kind of --kinds"))
  usual = "single" if flags.layouts is None else "mixed"
  if flags.faults or flags.processes:
    usual = table.GIVEN if flags.faults else table.PROCESSES
    flagset.refuse(["every", "num_cases"], f"with --{'faults' if flags.faults else 'processes'}")
  kinds = flags.kinds or (usual,)
  if "single" not in kinds:
    flagset.refuse(["every"], "without --kinds=single")
  elif len(kinds) == 1:
    flagset.refuse(["num_cases"], "with --kinds=single, which tries all")
  where = flags.jobs.read(flags.workdir)
  jobs = table.plan(
      flags.config,
      kinds,
      sweeps=[
          [*zip(swept, chosen, strict=True)]
          for chosen in itertools.product(*(values.values() for values in swept.values()))
      ],
      count=flags.layouts,
      arguments=tuple(flagset.to_argv(flags, "config")),
      every=flags.every,
      num_cases=flags.num_cases,
      num_events=flags.num_events,
      seed=flags.seed,
      faults=faults_lib.parse_faults((flags.faults or "").replace(";", "\n"), source="--faults"),
      program_cache=cli.find_program_cache(flags.program_cache),
  )
  states: collections.Counter[str] = collections.Counter()
  num_failed = 0
  inputs = sweep_lib.digest_code(flags.config.to_dict())
  done = sweep_lib.run(table.run, jobs, where, inputs=inputs)
  for row in itertools.chain.from_iterable(done):
    print(table.render(row), flush=True)
    states.update(row.states)
    num_failed += len(row.failures)
    for faults, message in row.failures:
      print(f"FAILED {message}")
      print(f"  {table.find_command(row, faults)}", flush=True)
  where.clear()
  print(
      f"layouts={len(jobs)} cases={states.total() + num_failed} same={states.total()} "
      f"hashes={len(states)} failed={num_failed}"
  )
  sys.exit(num_failed > 0)


if __name__ == "__main__":
  cli.run(main)
